//! A directory as Kubernetes mounts a ConfigMap or a Secret: each file is a link to a file below
//! `..data`, which is a link to the directory of a version. An update replaces that link, and all
//! files with it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Mount {
    folder: PathBuf,
    version: AtomicU32,
}

impl Mount {
    /// A mount in a folder, which need not exist.
    pub fn new(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        Self { folder: folder.to_owned(), version: AtomicU32::new(0) }
    }

    /// Replaces all files by these, at once, in the order of the kubelet's steps.
    pub fn publish(&self, files: &[(&str, &[u8])]) {
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        let name = |version: u32| format!("..2026_11_23_{version}");
        let folder = self.folder.join(name(version));
        fs::create_dir(&folder).expect("a version's folder");
        for (file, bytes) in files {
            fs::write(folder.join(file), bytes).expect("a file");
        }
        let next = self.folder.join("..data_tmp");
        symlink(name(version), &next).expect("a link");
        fs::rename(next, self.folder.join("..data")).expect("a link in place of the old one");
        for (file, _) in files {
            let path = self.folder.join(file);
            if fs::read_link(&path).is_err() {
                // A plain file of the same name, where the folder was filled before.
                let _ = fs::remove_file(&path);
                symlink(Path::new("..data").join(file), path).expect("a link");
            }
        }
        if let Some(old) = version.checked_sub(1) {
            fs::remove_dir_all(self.folder.join(name(old))).expect("no old version");
        }
    }
}
