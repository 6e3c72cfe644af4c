//! `weir replay`: the requests of access logs through a configuration, in virtual time.
//!
//! Results go to standard output, progress to standard error if that is a terminal.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::{CONFIG_DEFAULT, EXIT_WRONG, wrong, wrong_config};
use crate::app::{self, ReplayError, ReplayObserver, ReplayRun, json_for_terminals};
use crate::cli::print::{err, errln, out, print_json};
use crate::clock;
use crate::replay::report::{ReplayReport, stopped_line};
use crate::replay::{
    Client, DecidedRequest, FILES_MAX, FORMATS, Format, LinePattern, Logs, Progress, Reading,
    Record,
};

/// The log that is standard input, and the file that it is then.
const STDIN: &str = "-";
const STDIN_FILE: &str = "/dev/stdin";
/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct Replay {
    /// Access logs, compressed with gzip or not; `-` is standard input. Several are merged by time
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// The configuration that the requests go through
    #[arg(long, default_value = CONFIG_DEFAULT)]
    config: PathBuf,
    /// Also say what changes compared with this configuration
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,
    #[arg(long, value_parser = format, conflicts_with = "pattern", help = format_help())]
    format: Option<Format>,
    /// The format of the logs' lines, written like nginx's log_format, as in '$remote_addr -
    /// $remote_user [$time_local] "$request" $status $bytes'
    #[arg(long)]
    pattern: Option<String>,
    /// The host of requests whose log does not record it [default: localhost]
    #[arg(long, default_value = "", hide_default_value = true)]
    host: String,
    /// Suggest for each limit the smallest quota at which this many percent of its keys are never
    /// refused
    #[arg(long, default_value_t = 99.0, value_parser = percent)]
    percent: f64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Also count what other quotas of each limit would refuse, for --json. --html has that in any
    /// case
    #[arg(long, requires = "json")]
    curves: bool,
    /// Also write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write each request that is stopped, as a line of JSON: where it is in the logs, by
    /// which limit and key, when it would pass, or why the request itself was rejected
    #[arg(long, value_name = "FILE")]
    stopped: Option<PathBuf>,
}

fn format_help() -> String {
    format!("The logs' format, one of {} [default: recognised by their first lines]", names())
}

fn names() -> String {
    FORMATS.map(|(name, _)| name).join(", ")
}

fn format(text: &str) -> Result<Format, String> {
    let found = FORMATS.iter().find(|(name, _)| *name == text);
    found.map(|(_, format)| *format).ok_or_else(|| format!("expected one of {}", names()))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected a number from 0 to 100".to_owned())
}

impl Replay {
    pub(super) fn run(self) -> ExitCode {
        app::start_quiet_log();
        let code = match self.replay() {
            Ok((replayed, page)) => self.report(&replayed, page),
            Err(code) => code,
        };
        app::flush_log();
        code
    }

    /// Returns the file for the page, too, if one was asked for.
    fn replay(&self) -> Result<(ReplayReport, Option<Output>), ExitCode> {
        let reading = self.reading().map_err(|message| wrong(&message))?;
        if self.logs.len() > FILES_MAX {
            return Err(wrong(&format!(
                "found {} logs, expected at most {FILES_MAX}",
                self.logs.len()
            )));
        }
        let candidate =
            app::load(&self.config).map_err(|errors| wrong_config("replay", &errors))?;
        let against = self.against.as_deref().map(app::load).transpose();
        let against = against.map_err(|errors| wrong_config("replay", &errors))?;
        let paths: Vec<&Path> = self.logs.iter().map(PathBuf::as_path).collect();
        let read = Progress::default();
        let logs = Logs::open(&paths, &reading, &read);
        let logs = logs.map_err(|unreadable| wrong(&unreadable.to_string()))?;
        // Before the work that would be lost if one could not be written.
        let configs = [Some(&candidate), against.as_ref()];
        let read_files: Vec<&Path> =
            configs.into_iter().flatten().flat_map(|config| config.files()).collect();
        let page = self.output(self.html.as_deref(), &read_files)?;
        let stopped = self.output(self.stopped.as_deref(), &read_files)?;
        if let (Some(page), Some(stopped)) = (&page, &stopped)
            && is_same(&page.path, &stopped.path)
        {
            return Err(wrong("--html and --stopped name the same file"));
        }
        let mut watch = Watch::new(logs.bytes, &paths, stopped);
        let asked = ReplayRun {
            logs,
            candidate,
            against,
            host: self.host.clone(),
            percent: self.percent,
            curves: self.html.is_some() || self.curves,
        };
        let replayed = app::replay(asked, &read, &mut watch);
        watch.end()?;
        let replayed = replayed.map_err(|error| failed(&error))?;
        let replayed = ReplayReport {
            config: self.config.display().to_string(),
            against_config: self.against.as_ref().map(|path| path.display().to_string()),
            ..replayed
        };
        Ok((replayed, page))
    }

    /// Opens a file to write to, unless it is read as well: as a log, or for a configuration.
    fn output(
        &self,
        path: Option<&Path>,
        read_files: &[&Path],
    ) -> Result<Option<Output>, ExitCode> {
        let Some(path) = path else { return Ok(None) };
        let logs = self.logs.iter().map(|log| match log.as_os_str() == STDIN {
            true => Path::new(STDIN_FILE),
            false => log,
        });
        let configs = [Some(&self.config), self.against.as_ref()].into_iter().flatten();
        let configs = configs.map(PathBuf::as_path);
        let mut inputs = logs.chain(configs).chain(read_files.iter().copied());
        if let Some(input) = inputs.find(|input| is_same(input, path)) {
            let (path, input) = (path.display(), input.display());
            return Err(wrong(&format!("{path}: is read as {input}, and can't be written")));
        }
        let file =
            File::create(path).map_err(|error| wrong(&format!("{}: {error}", path.display())))?;
        Ok(Some(Output { path: path.to_owned(), file: BufWriter::new(file) }))
    }

    fn reading(&self) -> Result<Reading, String> {
        match (&self.pattern, self.format) {
            (Some(pattern), _) => LinePattern::parse(pattern)
                .map(Reading::Pattern)
                .map_err(|error| format!("--pattern: {error}")),
            (None, Some(format)) => Ok(Reading::As(format)),
            (None, None) => Ok(Reading::Detected),
        }
    }

    fn report(&self, replayed: &ReplayReport, page: Option<Output>) -> ExitCode {
        match self.json {
            true => print_json(&replayed.json()),
            false => out!("{}", replayed.text()),
        }
        let Some(Output { path, mut file }) = page else { return ExitCode::SUCCESS };
        match file.write_all(replayed.page().as_bytes()).and_then(|()| file.flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => unwritten(&path, &error),
        }
    }
}

/// A report that can't be written.
fn unwritten(path: &Path, error: &std::io::Error) -> ExitCode {
    errln!("weir: {}: {error}", path.display());
    ExitCode::FAILURE
}

/// A file that is written.
struct Output {
    path: PathBuf,
    file: BufWriter<File>,
}

/// Whether two paths lead to the same file. Not if one of them leads nowhere.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    place(one).is_some_and(|found| place(other) == Some(found))
}

fn failed(error: &ReplayError) -> ExitCode {
    match error {
        ReplayError::Mistakes(errors) => wrong_config("replay", errors),
        ReplayError::Log(unreadable) => wrong(&unreadable.to_string()),
        ReplayError::Nothing(summary) => {
            errln!("weir: no line of the logs is a request: found {}", summary.line_total());
            for one in &summary.broken_shown {
                errln!("{}:{}: {}", one.file, one.line, one.why);
            }
            summary.damaged.iter().for_each(|one| errln!("{}", one.describe()));
            ExitCode::from(EXIT_WRONG)
        }
    }
}

/// Draws progress, and writes what is stopped.
struct Watch {
    began: Instant,
    drawn: Option<Instant>,
    is_terminal: bool,
    bytes: Option<u64>,
    names: Vec<String>,
    stopped: Option<Output>,
    unwritten: Option<std::io::Error>,
}

impl Watch {
    fn new(bytes: Option<u64>, logs: &[&Path], stopped: Option<Output>) -> Self {
        Self {
            began: clock::monotonic(),
            drawn: None,
            is_terminal: std::io::stderr().is_terminal(),
            bytes,
            names: logs.iter().map(|path| path.display().to_string()).collect(),
            stopped,
            unwritten: None,
        }
    }

    fn end(&mut self) -> Result<(), ExitCode> {
        if self.drawn.is_some() {
            err!("\r\x1b[K");
        }
        let Some(Output { path, file }) = &mut self.stopped else { return Ok(()) };
        let written = self.unwritten.take().map_or_else(|| file.flush(), Err);
        written.map_err(|error| unwritten(path, &error))
    }
}

impl ReplayObserver for Watch {
    fn progress(&mut self, requests: u64, bytes: u64) {
        let now = clock::monotonic();
        let due = self.drawn.is_none_or(|drawn| now >= drawn + PROGRESS_EVERY);
        if !self.is_terminal || !due {
            return;
        }
        self.drawn = Some(now);
        let per_second = requests as f64 / (now - self.began).as_secs_f64().max(1e-3);
        let part = self
            .bytes
            .filter(|all| *all > 0)
            .map(|all| format!("{:3.0} %, ", (bytes as f64 * 100.0 / all as f64).min(100.0)));
        let part = part.unwrap_or_default();
        err!("\r\x1b[K{part}{requests} requests, {per_second:.0} a second");
    }

    fn stopped(&mut self, record: &Record, client: &Client, seen: &DecidedRequest<'_>) {
        let Some(Output { file, .. }) = &mut self.stopped else { return };
        let name = self.names.get(usize::from(record.file)).map_or("", String::as_str);
        let line = json_for_terminals(stopped_line(record, client, name, seen).to_string());
        if self.unwritten.is_none()
            && let Err(error) = writeln!(file, "{line}")
        {
            self.unwritten = Some(error);
        }
    }
}
