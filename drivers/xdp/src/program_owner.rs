//! The owner of a program on an interface: the process that has the link of it open, as `/proc` shows it.

use std::fs;

/// The process that holds the program with this number, in words; `None` where it is not seen: it is another
/// user's or another container's, or it attached the program without a link.
pub fn of_program(number: u32) -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| holds(*pid, number)).map(|pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", command.trim())
    })
}

fn holds(pid: u32, number: u32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return false;
    };
    open.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .any(|told| is_link_of(&told, number))
}

/// Whether the description of a descriptor is that of an XDP link with this program.
fn is_link_of(told: &str, number: u32) -> bool {
    let field = |name: &str| {
        told.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    field("link_type") == Some("xdp") && field("prog_id").and_then(|id| id.parse().ok()) == Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_of_the_program_count() {
        let told = "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t4\nprog_tag:\t00aa\nprog_id:\t77\nifindex:\t2\n";
        assert!(is_link_of(told, 77) && !is_link_of(told, 4));
        assert!(!is_link_of("pos:\t0\nprog_id:\t77\n", 77));
        assert!(!is_link_of("", 0));
        assert_eq!(of_program(u32::MAX), None);
    }
}
