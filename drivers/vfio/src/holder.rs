//! Finds the processes that have a device file open, by `/proc`.

use std::fs;
use std::path::Path;

use crate::host::{Host, line};

/// Describes the processes that have this file open; `None` if none is visible, of another user or another
/// container.
pub(crate) fn of_file(host: &Host, file: &Path) -> Option<String> {
    let processes = fs::read_dir(host.path("proc")).ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<_> = pids.filter(|pid| holds(host, *pid, file)).collect();
    pids.sort_unstable();
    let words = |pid: &u32| {
        let command = line(&host.path(&format!("proc/{pid}/comm"))).unwrap_or_default();
        format!("process {pid} ({command})")
    };
    let words: Vec<_> = pids.iter().map(words).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn holds(host: &Host, pid: u32, file: &Path) -> bool {
    let Ok(open) = fs::read_dir(host.path(&format!("proc/{pid}/fd"))) else {
        return false;
    };
    open.flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    #[test]
    fn processes_are_named_with_their_programs() {
        let tree = Tree::new();
        tree.file("proc/77/comm", "qemu");
        tree.link("proc/77/fd/3", "/dev/null");
        tree.link("proc/77/fd/12", "/dev/vfio/7");
        tree.file("proc/78/comm", "other");
        tree.link("proc/78/fd/12", "/dev/vfio/70");
        let of = |file: &str| of_file(&tree.host(), Path::new(file));
        assert_eq!(of("/dev/vfio/7").as_deref(), Some("process 77 (qemu)"));
        assert_eq!(of("/dev/vfio/8"), None);
    }
}
