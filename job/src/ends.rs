//! How a rank ends its connection to the launcher.

use std::time::Duration;

use crate::launcher::{LauncherHandle, lock};

/// Limit of the last exchange with a launcher.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Reports to the launcher that this rank has done its part.
pub fn farewell(launcher: &LauncherHandle) {
    // A launcher that misses this takes our end for a failure, and reports that itself.
    let _ = lock(launcher).finalize(LAST_WORDS);
}

/// Ends the whole job, as far as the launcher has a call for that, and this process with the status `exit`.
pub fn abort(launcher: Option<LauncherHandle>, exit: u8, reason: &str) -> ! {
    if let Some(launcher) = launcher {
        // A launcher that misses this notices how the process ends.
        let _ = lock(&launcher).abort(exit, reason, LAST_WORDS);
    }
    std::process::exit(i32::from(exit))
}
