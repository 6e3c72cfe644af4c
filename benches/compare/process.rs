//! A server under measurement: started on a core of its choice, ready when it takes connections, read through `/proc`, ended by `Drop`.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::harness;

/// How long a server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(15);
/// Times that another port is tried when somebody was faster.
const TRIES: usize = 3;
/// Ticks of `/proc/PID/stat` in a second: `USER_HZ`, which is the same on every Linux of today's machines.
const TICKS_A_SECOND: f64 = 100.0;

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub user: f64,
    pub kernel: f64,
}

/// A running server.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

/// Puts the calling thread, and whatever it starts from now on, on one core.
pub fn pin(core: usize) -> Result<(), String> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).map_err(|error| format!("no thread may run on core {core}: {error}"))
}

impl Process {
    /// Starts what `command` makes for an address that is free. What it writes goes to the file `output` of `folder`.
    pub fn start(folder: &Path, command: impl Fn(SocketAddr) -> Result<Command, String>) -> Result<Self, String> {
        let mut why = String::new();
        for _ in 0..TRIES {
            let address = harness::free_address();
            let log = folder.join("output");
            let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
            let mut command = command(address)?;
            let name = command.get_program().to_string_lossy().into_owned();
            command.stdin(Stdio::null()).stderr(output.try_clone().map_err(|error| error.to_string())?).stdout(output);
            let child = command.spawn().map_err(|error| format!("{name}: {error} (`scripts/setup.sh bench` installs what is needed)"))?;
            let mut process = Self { child, address };
            match process.await_ready() {
                Ok(()) => return Ok(process),
                Err(reason) => why = format!("{name}: {reason}\n{}", fs::read_to_string(&log).unwrap_or_default()),
            }
        }
        Err(why)
    }

    fn await_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended at its start, {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("takes no connection after {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The process that does the work: nginx' one worker, where its master is what was started.
    pub fn worker(&self) -> Result<Pid, String> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).map_err(|error| format!("its children: {error}"))?;
        let only = children.split_whitespace().next().map_or(Ok(pid), str::parse).map_err(|error| format!("a child's id: {error}"))?;
        i32::try_from(only).ok().and_then(Pid::from_raw).ok_or_else(|| format!("{only} is no process id"))
    }
}

impl Drop for Process {
    /// Asks first: a master that is killed leaves its worker behind.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that a process has used so far, all its threads together.
pub fn cpu(pid: Pid) -> Result<Cpu, String> {
    let stat = proc_file(pid, "stat")?;
    // The name in field 2 may hold blanks: what follows its bracket starts with field 3.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let seconds = |field: usize| {
        let ticks = fields.get(field - 3).and_then(|ticks| ticks.parse::<f64>().ok());
        ticks.map(|ticks| ticks / TICKS_A_SECOND).ok_or_else(|| format!("field {field} is missing: {stat}"))
    };
    Ok(Cpu { user: seconds(14)?, kernel: seconds(15)? })
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
