//! Messages about a child that was stopped: by which signal, the usual reason, and how to continue it.

use rustix::process::{Pid, Signal};

const TTIN: i32 = Signal::TTIN.as_raw();
const TTOU: i32 = Signal::TTOU.as_raw();

/// Returns the message about a rank that leads the process group `group`.
pub(super) fn rank(number: u32, group: Pid, signal: i32) -> String {
    let group = group.as_raw_nonzero();
    let go_on = format!("`kill -CONT -{group}` continues it");
    let how = match signal {
        TTOU => format!(
            "it changed the terminal's settings, or wrote to it where `stty tostop` leaves that to the foreground: \
             type `stty -tostop`; then {go_on}"
        ),
        TTIN => format!(
            "it read from the terminal, which belongs to the launcher: pipe the input of rank 0 into \
             `doorbell run`; `kill -KILL -{group}` ends it"
        ),
        _ => go_on,
    };
    format!(
        "rank {number} (process {group}) was stopped by {}: {how}",
        name(signal)
    )
}

/// Returns the message about the remote shell that was to start the daemon of `host`.
pub(super) fn shell(host: &str, shell: &str, process: Pid, signal: i32) -> String {
    let process = process.as_raw_nonzero();
    let how = match signal {
        TTIN | TTOU => format!(
            "it waits for input at the terminal, such as a password or the confirmation of a host key: \
             make `{shell} {host} true` work without a prompt, and start the job again"
        ),
        _ => format!("`kill -CONT -{process}` continues it"),
    };
    format!(
        "the remote shell of host {host} (`{shell}`, process {process}) was stopped by {}: {how}",
        name(signal)
    )
}

fn name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_its_advice() {
        let group = Pid::from_raw(7).unwrap();
        let stop = rank(3, group, Signal::STOP.as_raw());
        assert_eq!(
            stop,
            "rank 3 (process 7) was stopped by SIGSTOP: `kill -CONT -7` continues it"
        );
        assert!(rank(3, group, TTOU).contains("stty -tostop"));
        assert!(rank(3, group, TTIN).contains("pipe the input"));
        assert!(shell("a", "ssh", group, TTIN).contains("`ssh a true`"));
    }
}
