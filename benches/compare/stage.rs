//! What all cases share - upstream, Redis, Redis Cluster, certificate - and one run of one case.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::cases::{Case, Subject};
use super::figures::Figure;
use super::harness::cluster::Cluster;
use super::harness::pki::Pki;
use super::harness::redis::Redis;
use super::load::{self, Target};
use super::process::{self, Process};
use super::proxies::{self, Environment};

/// How long each run has load before it is measured: pools fill, LuaJIT compiles, and allowances of
/// one request are used up.
const WARM_UP: Duration = Duration::from_millis(400);
const WARM_UP_MAX: Duration = Duration::from_millis(3_200);

/// Cores, and the binary under test.
pub struct Settings {
    pub proxy_core: usize,
    pub load_core: usize,
    pub weir: PathBuf,
}

/// Everything that all cases share. Dropping it removes everything.
pub struct Stage {
    settings: Settings,
    upstream: Process,
    /// The store of nginx + Lua.
    redis: Option<Redis>,
    /// Weir's store: three masters.
    cluster: Option<Cluster>,
    folder: TempDir,
}

impl Stage {
    /// Starts what these cases need, on the load generator's core.
    pub fn set(settings: Settings, cases: &[Case]) -> Result<Self, String> {
        process::pin(settings.load_core)?;
        let folder =
            tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        load::prepare(folder.path())?;
        let issued = Pki::new().server(&["localhost", "127.0.0.1"]);
        for (name, pem) in [
            ("server.pem", &issued.certificate),
            ("server.key", &issued.key),
            ("both.pem", &(issued.certificate.clone() + &issued.key)),
        ] {
            fs::write(folder.path().join(name), pem).map_err(|error| format!("{name}: {error}"))?;
        }
        let place = subfolder(folder.path(), "upstream")?;
        let upstream = Process::start(&place, |address| proxies::upstream(&place, address))?;
        let redis =
            cases.iter().any(|case| case.subject == Subject::NginxLuaRedis).then(Redis::start);
        let cluster = cases.iter().any(|case| case.subject.is_on_cluster()).then(Cluster::start);
        Ok(Self { settings, upstream, redis, cluster, folder })
    }

    fn environment<'a>(
        &'a self,
        folder: &'a Path,
        redis: &'a [SocketAddr],
        files: &'a [PathBuf; 3],
    ) -> Environment<'a> {
        let [certificate, key, both] = files;
        Environment {
            folder,
            upstream: self.upstream.address,
            redis,
            certificate,
            key,
            both,
            weir: &self.settings.weir,
        }
    }

    fn redis_of(&self, case: &Case) -> Vec<&Redis> {
        match case.subject {
            Subject::NginxLuaRedis => self.redis.iter().collect(),
            Subject::WeirCluster | Subject::WeirLeased => {
                self.cluster.iter().flat_map(|cluster| &cluster.nodes).collect()
            }
            Subject::Nginx | Subject::Haproxy | Subject::Weir => Vec::new(),
        }
    }

    /// A fresh proxy on its core, with empty counters.
    fn start(&self, case: &Case) -> Result<Process, String> {
        let redis = self.redis_of(case);
        for node in &redis {
            node.connect().ask(&["FLUSHALL"]);
        }
        let addresses: Vec<SocketAddr> = redis.iter().map(|node| node.address).collect();
        let place = subfolder(self.folder.path(), "proxy")?;
        let files =
            ["server.pem", "server.key", "both.pem"].map(|name| self.folder.path().join(name));
        let environment = self.environment(&place, &addresses, &files);
        process::pin(self.settings.proxy_core)?;
        let proxy = Process::start(&place, |address| proxies::command(case, &environment, address));
        process::pin(self.settings.load_core)?;
        proxy
    }

    /// One run: a fresh proxy, some load to warm it up, then `seconds` that are measured, between
    /// two readings of every clock. A result that does not fit the case is an error.
    pub fn run(&self, case: &Case, seconds: u32) -> Result<Figure, String> {
        self.run_and_watch(case, seconds, |_| Ok(()))
    }

    /// Like [`Stage::run`], and calls `watch` with the working process once it is warm. What
    /// `watch` returns is dropped when the load has ended.
    pub fn run_and_watch<T>(
        &self,
        case: &Case,
        seconds: u32,
        watch: impl FnOnce(rustix::process::Pid) -> Result<T, String>,
    ) -> Result<Figure, String> {
        let proxy = self.start(case)?;
        let pid = proxy.worker(case.is_nginx())?;
        let (rest_mib, _) = process::memory_mib(pid)?;
        let target = Target { case, address: proxy.address, folder: self.folder.path() };
        warm_up(&target)?;
        let watching = watch(pid)?;
        let (cpu_before, redis_before, started) =
            (process::cpu(pid)?, self.redis_cpu(case)?, Instant::now());
        let load = target.measure(seconds)?;
        let (cpu_after, redis_after, passed) =
            (process::cpu(pid)?, self.redis_cpu(case)?, started.elapsed());
        drop(watching);

        target.probe()?;
        let (_, peak_mib) = process::memory_mib(pid)?;
        let requests = load.requests as f64;
        let (user, kernel) = cpu_after.since(cpu_before);
        Ok(Figure {
            requests_a_second: requests / load.seconds,
            p50_us: load.p50_us,
            p99_us: load.p99_us,
            user_us: user * 1e6 / requests,
            kernel_us: kernel * 1e6 / requests,
            redis_us: redis_before
                .zip(redis_after)
                .map(|(before, after)| (after - before) * 1e6 / requests),
            busy: (user + kernel) / passed.as_secs_f64(),
            rest_mib,
            peak_mib,
        })
    }

    /// CPU time of all Redis servers of a case so far, in seconds. They report it to the
    /// microsecond.
    fn redis_cpu(&self, case: &Case) -> Result<Option<f64>, String> {
        let nodes = self.redis_of(case);
        let mut sum = 0.0;
        for node in &nodes {
            let info = node.connect().ask(&["INFO", "cpu"]).text();
            for name in ["used_cpu_user:", "used_cpu_sys:"] {
                let seconds = info
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
                sum += seconds.ok_or_else(|| format!("Redis has no {name} {info}"))?;
            }
        }
        Ok((!nodes.is_empty()).then_some(sum))
    }
}

/// Puts load on the proxy until one request has the expected result. A busy machine may need longer
/// to use up a thousand allowances.
fn warm_up(target: &Target<'_>) -> Result<(), String> {
    let mut time = WARM_UP;
    loop {
        target.warm_up(time)?;
        match target.probe() {
            Err(_) if time < WARM_UP_MAX => time *= 2,
            result => return result,
        }
    }
}

/// An empty folder that nginx's worker, which runs as `nobody`, may read too.
fn subfolder(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let open =
        |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed);
    open(folder)?;
    let place = folder.join(name);
    if place.exists() {
        fs::remove_dir_all(&place).map_err(failed)?;
    }
    fs::create_dir(&place).map_err(failed)?;
    open(&place)?;
    Ok(place)
}
