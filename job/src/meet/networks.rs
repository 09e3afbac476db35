//! Finds out why a rank does not reach rank 0 on its own host: an abstract name exists in one network
//! namespace only, and rank 0 may be in another one. The search goes through /proc, as `ps` does, for the
//! environment that rank 0 was started with.

use std::fs;
use std::path::{Path, PathBuf};

use super::Root;

/// Returns the reason, when a process of this user is rank 0 of the meeting and in another network namespace
/// than this one.
pub(super) fn apart(root: &Root) -> Option<String> {
    let here = network(Path::new("/proc/self"))?;
    let others = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let mut zeros = others.filter(|folder| is_rank_zero(folder, &root.to_string()));
    // Children of the launcher have this environment before they become the rank, too: one in this namespace
    // settles it.
    let (mut away, mut near) = (None, false);
    zeros.by_ref().for_each(|folder| match network(&folder) {
        Some(there) if there == here => near = true,
        Some(there) => away = Some((folder, there)),
        None => {}
    });
    let (folder, there) = away.filter(|_| !near)?;
    let process = folder.file_name()?.to_str()?.to_owned();
    Some(format!(
        "rank 0 (process {process}) is in network namespace {there} and this rank in {here}, and the meeting at {root} \
         exists in one of them only; start all ranks in one network namespace, or each namespace as a host of its own: \
         `doorbell run --hosts NAME,NAME --rsh 'ip netns exec' …`"
    ))
}

fn is_rank_zero(folder: &Path, root: &str) -> bool {
    let number = folder.file_name().and_then(|name| name.to_str());
    if !number.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        return false;
    }
    let environment = fs::read(folder.join("environ")).unwrap_or_default();
    let has = |wanted: &str| {
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == wanted.as_bytes())
    };
    has("DOORBELL_RANK=0") && has(&format!("DOORBELL_ROOT={root}"))
}

/// Returns the number of a process's network namespace.
fn network(folder: &Path) -> Option<String> {
    let link: PathBuf = fs::read_link(folder.join("ns/net")).ok()?;
    let text = link.to_str()?;
    Some(
        text.trim_start_matches("net:")
            .trim_matches(['[', ']'])
            .to_owned(),
    )
}
