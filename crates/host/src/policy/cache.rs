//! Compiled code on disk, so that a start and a reload need not compile what was compiled before.
//!
//! Compiled code is machine code: whoever can write here can run code in this process. wasmtime
//! checks of it only that its engine is the right one, and so its function for loading is unsafe.
//! Three things make it sound here:
//!
//! - The folder is ours and nobody else can write to it (0700), and neither can others replace a
//!   folder on the path to it. The same holds for each file. So a file was written by this user's
//!   processes, which can change this process anyway, or by root.
//! - A file is named after the digest of everything that its code depends on: the module, the
//!   contract, this engine with its settings and the processor. It begins with that digest, and
//!   with one of its own content. What is torn, damaged or renamed is not loaded.
//! - What was checked is what is loaded: the bytes are read once, and loaded from memory.
//!
//! A cache that can't be used costs time and nothing else: it is warned about once.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{Hash as _, Hasher};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component as Part, Path, PathBuf};
use std::time::{Duration, SystemTime};

use wasmtime::Engine;
use wasmtime::component::Component;

use super::caps::CacheFolder;
use crate::clock::Clock;

/// What each file begins with. The number is that of the layout.
const MAGIC: &[u8; 8] = b"weir-c01";
const DIGEST_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + 2 * DIGEST_BYTES;
/// Ends the names of files that are being written.
const UNFINISHED: &str = ".new";
/// Others may not write.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A digest of everything that compiled code depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key([u8; DIGEST_BYTES]);

/// A folder of compiled code that only we can write to.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    engine: [u8; DIGEST_BYTES],
}

impl Cache {
    /// The cache in `folder`, which is created if it is missing. `None` if there is none, or if it
    /// is not safe to use: that is logged.
    pub(super) fn open(folder: &CacheFolder, bytes_max: u64, engine: &Engine) -> Option<Self> {
        let asked = match folder {
            CacheFolder::Off => return None,
            CacheFolder::At(path) => path.clone(),
            CacheFolder::Usual => usual(|name| std::env::var_os(name).map(PathBuf::from))?,
        };
        match private(&asked) {
            Ok(folder) => Some(Self { folder, bytes_max, engine: digest_of(engine) }),
            Err(why) => {
                tracing::warn!(
                    "compiled policies are not cached: server.cache_folder: {}: {why}",
                    asked.display()
                );
                None
            }
        }
    }

    /// The key of what `engine` compiles from `module`, whose digest this is.
    pub(super) fn key(&self, module: &blake3::Hash, contract: &str) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key("weir compiled policies");
        hasher.update(&self.engine).update(module.as_bytes()).update(contract.as_bytes());
        Key(*hasher.finalize().as_bytes())
    }

    /// The component that was compiled under this key.
    #[allow(
        unsafe_code,
        reason = "compiled code is loaded: see this file's head for why it is ours and whole"
    )]
    pub(super) fn load(&self, engine: &Engine, key: &Key) -> Option<Component> {
        let path = self.path(key);
        let bytes = match read(&path, self.bytes_max, key) {
            Ok(bytes) => bytes,
            Err(CacheMiss::Absent) => return None,
            Err(CacheMiss::Unsafe(why)) => {
                tracing::warn!(
                    "a policy is recompiled, because its cached code can't be used: {}: {why}",
                    path.display()
                );
                return None;
            }
        };
        let code = bytes.get(HEAD_BYTES..)?;
        // SAFETY: `code` was written by `store`, which got it from `Component::serialize` of an
        // engine with the same digest; `read` has checked that nobody else could write the file and
        // that it is whole. It is copied from memory, so it can't change meanwhile.
        let loaded = unsafe { Component::deserialize(engine, code) };
        loaded
            .inspect_err(|error| {
                tracing::warn!("a policy is recompiled: {}: {error:#}", path.display())
            })
            .ok()
    }

    /// Keeps what was compiled. A failure is only logged.
    pub(super) fn store(&self, key: &Key, component: &Component) {
        let stored = component
            .serialize()
            .map_err(io::Error::other)
            .and_then(|code| self.write(key, &code))
            .and_then(|()| self.shrink());
        if let Err(error) = stored {
            tracing::warn!("a compiled policy is not cached in {}: {error}", self.folder.display());
        }
    }

    fn write(&self, key: &Key, code: &[u8]) -> io::Result<()> {
        // Keeping it would remove all others, and then itself.
        if code.len() as u64 > self.bytes_max {
            return Err(io::Error::other("it is larger than server.cache_bytes"));
        }
        let path = self.path(key);
        let unfinished = path.with_extension(format!(
            "{}-{:x}{UNFINISHED}",
            std::process::id(),
            fastrand::u64(..)
        ));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| {
                file.write_all(MAGIC)?;
                file.write_all(content_digest(key, code).as_bytes())?;
                file.write_all(&key.0)?;
                file.write_all(code)
            })
            .and_then(|()| fs::rename(&unfinished, &path));
        written.inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Removes the least recently used files until the rest is within the maximum.
    fn shrink(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another process may have removed it by now.
            if let Ok(metadata) = entry.metadata()
                && metadata.is_file()
            {
                files.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, freed, path) in files {
            if bytes <= self.bytes_max {
                break;
            }
            fs::remove_file(path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            bytes -= freed;
        }
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(blake3::Hash::from(key.0).to_hex().as_str())
    }
}

/// Why a file is not loaded.
#[derive(Debug)]
enum CacheMiss {
    Absent,
    Unsafe(String),
}

impl From<io::Error> for CacheMiss {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            _ => Self::Unsafe(error.to_string()),
        }
    }
}

/// The file's bytes, if they are what was written under `key`. Marks the file as used.
fn read(path: &Path, bytes_max: u64, key: &Key) -> Result<Vec<u8>, CacheMiss> {
    let wrong = |what: &str| Err(CacheMiss::Unsafe(what.to_owned()));
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return wrong("it is not a file");
    }
    if let Some(why) = foreign(&metadata) {
        return wrong(&why);
    }
    if metadata.len() > bytes_max {
        return wrong("it is larger than server.cache_bytes");
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    (&file).take(bytes_max).read_to_end(&mut bytes)?;
    let (Some((magic, rest)), true) =
        (bytes.split_at_checked(MAGIC.len()), bytes.len() >= HEAD_BYTES)
    else {
        return wrong("it is too short");
    };
    let (digest, rest) = rest.split_at(DIGEST_BYTES);
    let (of, code) = rest.split_at(DIGEST_BYTES);
    if magic != MAGIC || of != key.0 || digest != content_digest(key, code).as_bytes() {
        return wrong("it is damaged");
    }
    mark_used(&file);
    Ok(bytes)
}

/// The time of a file's last use is that of its last change: it decides what is removed first.
fn mark_used(file: &File) {
    let now = Duration::from_micros(u64::try_from(Clock::system().wall_us()).unwrap_or(0));
    // If it fails, the file is removed earlier than others.
    let _ = file.set_modified(SystemTime::UNIX_EPOCH + now);
}

fn content_digest(key: &Key, code: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(&key.0).update(code).finalize()
}

/// The folder that is used where none is configured.
fn usual(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    // systemd lists several folders with colons between them.
    let of_service = variable("CACHE_DIRECTORY").and_then(|folders| {
        folders.to_str()?.split(':').next().map(PathBuf::from).filter(|path| path.is_absolute())
    });
    of_service
        .or_else(|| absolute("XDG_CACHE_HOME").map(|path| path.join("weir")))
        .or_else(|| absolute("HOME").map(|path| path.join(".cache/weir")))
}

/// The folder's real path, if it and all above it are safe; it is created if it is missing. The
/// error is the reason.
fn private(asked: &Path) -> Result<PathBuf, String> {
    let text = |error: io::Error| error.to_string();
    DirBuilder::new().recursive(true).mode(0o700).create(asked).map_err(text)?;
    // A link that somebody else has made could lead anywhere. systemd makes one for services with a
    // user of their own; that one is root's.
    let written = fs::symlink_metadata(asked).map_err(text)?;
    if !of_ours_or_root(&written) {
        return Err(format!("it belongs to user {}", written.uid()));
    }
    let folder = fs::canonicalize(asked).map_err(text)?;
    let mut above = PathBuf::new();
    for part in folder.components() {
        above.push(part);
        if above == folder || !matches!(part, Part::RootDir | Part::Normal(_)) {
            continue;
        }
        let metadata = fs::symlink_metadata(&above).map_err(text)?;
        let open = metadata.mode() & OTHERS_WRITE != 0 && metadata.mode() & STICKY == 0;
        if open || !of_ours_or_root(&metadata) {
            return Err(format!("others can replace what is in {}", above.display()));
        }
    }
    let metadata = fs::symlink_metadata(&folder).map_err(text)?;
    match foreign(&metadata) {
        Some(why) => Err(why),
        None if metadata.is_dir() => Ok(folder),
        None => Err("it is not a folder".into()),
    }
}

/// Why somebody else may have written here.
fn foreign(metadata: &Metadata) -> Option<String> {
    if metadata.uid() != us() {
        return Some(format!("it belongs to user {}, not to {}", metadata.uid(), us()));
    }
    let open = metadata.mode() & OTHERS_WRITE != 0;
    open.then(|| format!("others can write to it (mode {:04o})", metadata.mode() & 0o7777))
}

fn of_ours_or_root(metadata: &Metadata) -> bool {
    metadata.uid() == us() || metadata.uid() == 0
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Everything about an engine that compiled code depends on: wasmtime's version and settings, and
/// the processor's features.
fn digest_of(engine: &Engine) -> [u8; DIGEST_BYTES] {
    struct Digest(blake3::Hasher);
    impl Hasher for Digest {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut digest = Digest(blake3::Hasher::new());
    engine.precompile_compatibility_hash().hash(&mut digest);
    *digest.0.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn cache(folder: &Path, bytes_max: u64) -> (Engine, Option<Cache>) {
        let engine = Engine::default();
        let cache = Cache::open(&CacheFolder::At(folder.into()), bytes_max, &engine);
        (engine, cache)
    }

    fn component(engine: &Engine, exports: &str) -> Component {
        let text = format!("(component (core module {exports}))");
        Component::new(engine, wat::parse_str(text).unwrap()).unwrap()
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn stored_decisions_are_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, cache) = cache(&folder.path().join("a/b"), 1 << 20);
        let cache = cache.unwrap();
        assert_eq!(fs::metadata(&cache.folder).unwrap().mode() & 0o7777, 0o700);
        let key = cache.key(&blake3::hash(b"module"), "contract");
        assert!(cache.load(&engine, &key).is_none());
        cache.store(&key, &component(&engine, ""));
        assert!(cache.load(&engine, &key).is_some());
        assert_eq!(fs::metadata(cache.path(&key)).unwrap().mode() & 0o7777, 0o600);
        for other in [
            cache.key(&blake3::hash(b"modul"), "contract"),
            cache.key(&blake3::hash(b"module"), "contract of another version"),
        ] {
            assert_ne!(other, key);
            assert!(cache.load(&engine, &other).is_none());
            // Renamed by hand: the file says what it is.
            fs::copy(cache.path(&key), cache.path(&other)).unwrap();
            assert!(cache.load(&engine, &other).is_none());
        }
    }

    #[test]
    fn a_damaged_file_is_never_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, cache) = cache(folder.path(), 1 << 20);
        let cache = cache.unwrap();
        let key = cache.key(&blake3::hash(b"module"), "");
        cache.store(&key, &component(&engine, ""));
        let (path, whole) = (cache.path(&key), fs::read(cache.path(&key)).unwrap());
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let mut damaged = whole.clone();
            damaged[random.usize(..whole.len())] ^= 1 << random.u8(..8);
            fs::write(&path, &damaged).unwrap();
            assert!(matches!(read(&path, 1 << 20, &key), Err(CacheMiss::Unsafe(_))));
            fs::write(&path, &whole[..random.usize(..whole.len())]).unwrap();
            assert!(matches!(read(&path, 1 << 20, &key), Err(CacheMiss::Unsafe(_))));
        }
        let mut longer = whole.clone();
        longer.push(0);
        fs::write(&path, longer).unwrap();
        assert!(cache.load(&engine, &key).is_none());
        // Compiled again, it is replaced.
        cache.store(&key, &component(&engine, ""));
        assert!(cache.load(&engine, &key).is_some());
    }

    #[test]
    fn a_cache_that_others_can_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, cache) = cache(folder.path(), 1 << 20);
        let cache = cache.unwrap();
        let key = cache.key(&blake3::hash(b"module"), "");
        cache.store(&key, &component(&engine, ""));
        let path = cache.path(&key);
        mode(&path, 0o620);
        assert!(cache.load(&engine, &key).is_none());
        mode(&path, 0o600);
        assert!(cache.load(&engine, &key).is_some());
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(cache.load(&engine, &key).is_none(), "through a link");

        let inner = folder.path().join("inner");
        assert!(private(&inner).is_ok());
        mode(&inner, 0o770);
        assert!(private(&inner).unwrap_err().contains("others can write to it (mode 0770)"));
        mode(&inner, 0o700);
        mode(folder.path(), 0o777);
        assert!(private(&inner).unwrap_err().starts_with("others can replace what is in"));
        mode(folder.path(), 0o1777);
        assert!(private(&inner).is_ok(), "as in /tmp, where only the owner can rename");
        mode(folder.path(), 0o700);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(private(&file).is_err());
    }

    #[test]
    fn the_least_recently_used_entry_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, of_any) = cache(folder.path(), 1 << 30);
        let all = of_any.unwrap();
        let keys: Vec<Key> = (0..4).map(|nth: u8| all.key(&blake3::hash(&[nth]), "")).collect();
        let aged = |key: &Key, seconds: u64| {
            let file = File::options().write(true).open(all.path(key)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        for (nth, key) in keys[..3].iter().enumerate() {
            all.store(key, &component(&engine, ""));
            aged(key, 1_000 + nth as u64);
        }
        assert!(all.load(&engine, &keys[0]).is_some(), "used just now");
        let bytes = fs::metadata(all.path(&keys[0])).unwrap().len();
        let small = cache(folder.path(), 3 * bytes).1.unwrap();
        small.store(&keys[3], &component(&engine, ""));
        let found: Vec<bool> = keys.iter().map(|key| small.load(&engine, key).is_some()).collect();
        assert_eq!(found, [true, false, true, true]);
    }

    #[test]
    fn the_usual_folder_is_the_services_or_the_users() {
        let of = |all: &[(&str, &str)]| {
            usual(|name| {
                all.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        let home = ("HOME", "/a");
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("HOME", "relative")]), None);
        assert_eq!(of(&[home]), Some("/a/.cache/weir".into()));
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(of(&[home, xdg]), Some("/x/weir".into()));
        let service = ("CACHE_DIRECTORY", "/var/cache/weir:/var/cache/more");
        assert_eq!(of(&[home, xdg, service]), Some("/var/cache/weir".into()));
    }
}
