//! Captures that a guest brought out, decoded by tshark with the project's dissector: what the kernel saw on
//! the wire is understood.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::programs::Programs;
use super::verdict::Check;
use crate::error::Error;

/// What tshark may take for a capture of a guest.
const LIMIT: Duration = Duration::from_secs(60);
/// Fewer frames prove nothing.
const ENOUGH: usize = 20;

/// The fields that tshark prints of a frame: its number, our kind, what it found malformed, and our CRC's
/// status.
const FIELDS: [&str; 4] = [
    "frame.number",
    "doorbell.kind",
    "_ws.malformed",
    "doorbell.check.status",
];

/// Checks a capture with the dissector; `None` where there is no tshark.
pub(super) fn judge(
    programs: &Programs,
    root: &Path,
    name: &str,
    file: &Path,
) -> Result<Option<Check>, Error> {
    if !has_tshark() {
        return Ok(None);
    }
    let mut command = Command::new("tshark");
    command
        .arg("-X")
        .arg(format!(
            "lua_script:{}",
            root.join("tools/dissector/doorbell.lua").display()
        ))
        .arg("-r")
        .arg(file)
        .args(["-Y", "udp", "-T", "fields"])
        .args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let said = programs.run("tshark", &format!("decoding {name}"), &mut command, LIMIT)?;
    let failure = match said.code {
        Some(0) => wrong(&said.text),
        _ => Some(format!("tshark {}", said.how(LIMIT))),
    };
    Ok(Some(Check {
        what: format!("{name}: every frame on the wire is understood by the dissector"),
        failure,
    }))
}

fn has_tshark() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("tshark").is_file())
}

/// Returns what is wrong with the frames, if anything. Other lines are tshark's messages about itself.
fn wrong(text: &str) -> Option<String> {
    let frames: Vec<[&str; 4]> = text.lines().filter_map(frame).collect();
    if frames.len() < ENOUGH {
        return Some(format!("only {} frames: {text}", frames.len()));
    }
    frames.iter().find_map(|[number, kind, malformed, check]| {
        let what = match (*kind, *malformed, *check) {
            ("", _, _) => "is not recognised",
            (_, "", "0") => "has a wrong CRC",
            (_, "", _) => return None,
            _ => "is malformed",
        };
        Some(format!("frame {number} of {} {what}", frames.len()))
    })
}

fn frame(line: &str) -> Option<[&str; 4]> {
    let fields: Vec<&str> = line.split('\t').collect();
    let fields: [&str; 4] = fields.try_into().ok()?;
    fields[0].parse::<u32>().ok().map(|_| fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(last: &str) -> String {
        let good: String = (1..=ENOUGH).map(|number| format!("{number}\t2\t\t1\n")).collect();
        format!("Running as user \"root\"\n{good}{last}")
    }

    #[test]
    fn every_frame_has_to_be_recognised_whole_and_right() {
        assert_eq!(wrong(&frames("")), None);
        assert_eq!(wrong(&frames("21\t2\t\t\n")), None, "without a CRC");
        assert!(
            wrong(&frames("21\t\t\t\n"))
                .unwrap()
                .contains("frame 21 of 21 is not")
        );
        assert!(wrong(&frames("21\t2\tx\t1\n")).unwrap().contains("malformed"));
        assert!(wrong(&frames("21\t2\t\t0\n")).unwrap().contains("CRC"));
        assert!(wrong("1\t2\t\t1\n").unwrap().contains("only 1"));
    }
}
