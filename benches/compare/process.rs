//! A server under measurement: started on a given core, ready when it accepts connections, observed
//! through `/proc`, stopped by `Drop`.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::harness;

/// Time limit for a server's start and for its end.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Attempts with another port, if a port was taken by another process meanwhile.
const TRIES: usize = 3;
/// CPU time since a process began.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// CPU time, with a resolution of nanoseconds.
    seconds: f64,
    /// CPU time in ticks of 10 ms, classified by where a tick found the process: good for the ratio
    /// of the two, not for their sum.
    user_ticks: f64,
    kernel_ticks: f64,
}

impl Cpu {
    /// Seconds in the process and seconds in the kernel since `earlier`.
    pub fn since(&self, earlier: Self) -> (f64, f64) {
        let (user, kernel) =
            (self.user_ticks - earlier.user_ticks, self.kernel_ticks - earlier.kernel_ticks);
        let seconds = self.seconds - earlier.seconds;
        let share = user / (user + kernel).max(1.0);
        (seconds * share, seconds * (1.0 - share))
    }
}

/// A running server.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

/// Pins the calling thread, and whatever it starts from now on, to one core.
pub fn pin(core: usize) -> Result<(), String> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores)
        .map_err(|error| format!("no thread may run on core {core}: {error}"))
}

impl Process {
    /// Starts the command that `command` returns for a free address. Its output goes to the file
    /// `output` in `folder`.
    pub fn start(
        folder: &Path,
        command: impl Fn(SocketAddr) -> Result<Command, String>,
    ) -> Result<Self, String> {
        let mut why = String::new();
        for _ in 0..TRIES {
            let address = harness::free_address();
            let log = folder.join("output");
            let output =
                File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
            let mut command = command(address)?;
            let name = command.get_program().to_string_lossy().into_owned();
            command
                .stdin(Stdio::null())
                .stderr(output.try_clone().map_err(|error| error.to_string())?)
                .stdout(output);
            let child = command.spawn().map_err(|error| {
                format!("{name}: {error} (`scripts/setup.sh bench` installs what is needed)")
            })?;
            let mut process = Self { child, address };
            match process.await_ready() {
                Ok(()) => return Ok(process),
                Err(reason) => {
                    why = format!(
                        "{name}: {reason}\n{}",
                        fs::read_to_string(&log).unwrap_or_default()
                    )
                }
            }
        }
        Err(why)
    }

    fn await_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        while TcpStream::connect(self.address).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended at its start, {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("takes no connection after {TIMEOUT:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The process that does the work: if a master `forks`, its one worker, as soon as that exists.
    pub fn worker(&self, forks: bool) -> Result<Pid, String> {
        let master = Pid::from_child(&self.child);
        if !forks {
            return Ok(master);
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let children =
                proc_file(master, &format!("task/{}/children", master.as_raw_nonzero()))?;
            if let Some(worker) = children
                .split_whitespace()
                .next()
                .and_then(|id| id.parse().ok())
                .and_then(Pid::from_raw)
            {
                return Ok(worker);
            }
            if Instant::now() > deadline {
                return Err(format!("no worker after {TIMEOUT:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    /// Terminates it first: a master that is killed leaves its worker behind.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that all threads of a process have used so far: from `stat`, and from each thread's
/// `schedstat`, because `stat` counts in ticks. None of the proxies ends a thread while it serves.
pub fn cpu(pid: Pid) -> Result<Cpu, String> {
    let stat = proc_file(pid, "stat")?;
    // The name in field 2 may contain blanks. The text after its bracket starts with field 3.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |field: usize| {
        let ticks = fields.get(field - 3).and_then(|ticks| ticks.parse::<f64>().ok());
        ticks.ok_or_else(|| format!("field {field} is missing: {stat}"))
    };
    let threads = format!("/proc/{}/task", pid.as_raw_nonzero());
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(&threads).map_err(|error| format!("{threads}: {error}"))? {
        let file = thread.map_err(|error| format!("{threads}: {error}"))?.path().join("schedstat");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let ran = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        nanoseconds += ran.ok_or_else(|| format!("{} has no time: {text}", file.display()))?;
    }
    Ok(Cpu { seconds: nanoseconds / 1e9, user_ticks: ticks(14)?, kernel_ticks: ticks(15)? })
}

/// Memory that a process holds now, and the most that it ever held: `VmRSS` and `VmHWM`, in MiB.
pub fn memory_mib(pid: Pid) -> Result<(f64, f64), String> {
    let status = proc_file(pid, "status")?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| format!("{name} is missing: {status}"))
    };
    Ok((mib("VmRSS")?, mib("VmHWM")?))
}

fn proc_file(pid: Pid, name: &str) -> Result<String, String> {
    let path = format!("/proc/{}/{name}", pid.as_raw_nonzero());
    fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
}
