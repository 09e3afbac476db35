//! Preloaded routes: a dump of OpenSM's path records between all ports ("full", version 1).
//!
//! ```text
//!   Channel Adapter 0x0002c9030002faed, base LID 6, LMC 0, port 1        from here …
//!   # LID  : SL : MTU : RATE
//!   0x0006 : 0  : 4   : 3                                                … to LID 6, by service level 0
//!   0x0007 : UNREACHABLE
//!   Switch 0x0002c90200404a10, base LID 7, LMC 0, port 0
//!   …
//! ```
//!
//! A section begins with a port: its type (`Switch`, `Channel Adapter`, `Router`), its GUID, and its `base
//! LID`. Its lines are the paths from that port. Of a dump between all ports, only the paths from ports of
//! this host are kept, and the GUIDs of all LIDs, which are 48 Ki at most. The file is read once, from start
//! to end.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::Path as File;
use std::sync::Arc;

use super::lines::{Warnings, each_line, named, shown};
use super::values::hexadecimal;
use crate::address::Gid;
use crate::endpoint::{Endpoint, Link};
use crate::path::{Mtu, Path, Rate};

/// The first LID of a multicast group; ports have lower ones.
const MULTICAST: u16 = 0xc000;
/// The types of a section's port.
const KINDS: [&str; 3] = ["Switch ", "Channel Adapter ", "Router "];
/// Selector "exactly" before codes of MTU and rate, which may be missing.
const EXACTLY: u8 = 0x80;

/// The head of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    guid: u64,
    lid: u16,
}

/// A line of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    sl: u8,
    mtu: Mtu,
    rate: Rate,
}

/// Parses a number as OpenSM writes it: hexadecimal with `0x`, or decimal.
fn number(word: &str) -> Option<u64> {
    let word = word.trim();
    if word.starts_with("0x") {
        hexadecimal(word)
    } else {
        word.parse().ok()
    }
}

fn lid(word: &str) -> Option<u16> {
    let lid = u16::try_from(number(word)?).ok()?;
    (1..MULTICAST).contains(&lid).then_some(lid)
}

/// Parses the head of a section: an error for a malformed one, `None` for anything else.
fn section(line: &str) -> Option<Result<Section, ()>> {
    let rest = KINDS.iter().find_map(|kind| line.strip_prefix(kind))?;
    let read = || {
        let (guid, rest) = rest.split_once(',')?;
        let (_, rest) = rest.split_once("base LID")?;
        let guid = hexadecimal(guid.trim()).filter(|guid| *guid != 0)?;
        let lid = lid(rest.split(',').next()?)?;
        Some(Section { guid, lid })
    };
    Some(read().ok_or(()))
}

/// Parses a line: its destination, and the path unless it is unreachable.
fn row(line: &str) -> Option<(u16, Option<Row>)> {
    let mut fields = line.split(':').map(str::trim);
    let to = lid(fields.next()?)?;
    let first = fields.next()?;
    if first.eq_ignore_ascii_case("unreachable") {
        return Some((to, None));
    }
    let code = |word: &str| u8::try_from(number(word)?).ok();
    let unit = |word: &str| code(word).map(|code| if code & 0xc0 == EXACTLY { code & 0x3f } else { code });
    let row = Row {
        sl: code(first).filter(|sl| *sl < 16)?,
        mtu: unit(fields.next()?).and_then(Mtu::of)?,
        rate: unit(fields.next()?).and_then(Rate::of)?,
    };
    Some((to, Some(row)))
}

/// State of the parser.
#[derive(Default)]
struct Reading {
    guids: BTreeMap<u16, u64>,
    /// The paths, by endpoint and destination.
    rows: BTreeMap<(usize, u16), (u32, Row)>,
    /// The endpoints of the current section.
    from: Vec<usize>,
    in_section: bool,
}

impl Reading {
    fn begin(
        &mut self,
        at: u32,
        begin: Section,
        ends: &[Endpoint],
        file: &Arc<File>,
        warnings: &mut Warnings,
    ) {
        self.in_section = true;
        if let Some(other) = self
            .guids
            .insert(begin.lid, begin.guid)
            .filter(|guid| *guid != begin.guid)
        {
            let what = format!(
                "LID {} belongs to {other:#018x} and to {:#018x}; the latter counts",
                begin.lid, begin.guid
            );
            warnings.push(file, at, what, "let OpenSM write the file again");
        }
        let is_own = |end: &Endpoint| {
            end.link == Link::InfiniBand && end.lid == begin.lid && end.gid.0[8..] == begin.guid.to_be_bytes()
        };
        let all = ends.iter().enumerate();
        self.from = all.filter(|(_, end)| is_own(end)).map(|(at, _)| at).collect();
    }

    /// Returns the paths of all lines whose destination has a GUID.
    fn paths(self, ends: &[Endpoint], file: &Arc<File>, warnings: &mut Warnings) -> Vec<Path> {
        let mut paths = Vec::new();
        for ((from, to), (at, row)) in self.rows {
            let Some(guid) = self.guids.get(&to) else {
                let what =
                    format!("no section has base LID {to}, so its GID is unknown; the line is ignored");
                warnings.push(file, at, what, "let OpenSM write the file again");
                continue;
            };
            paths.push(path(&ends[from], to, *guid, row));
        }
        paths
    }
}

fn path(from: &Endpoint, to: u16, guid: u64, row: Row) -> Path {
    Path {
        dgid: gid(from.gid, guid),
        sgid: from.gid,
        dlid: to,
        slid: from.lid,
        reversible: true,
        num_path: 1,
        pkey: from.pkey,
        sl: row.sl,
        mtu: Some(row.mtu),
        rate: Some(row.rate),
        packet_lifetime: if to == from.lid { 0 } else { from.subnet_timeout },
        ..Path::default()
    }
}

/// Parses the paths that start at one of these endpoints. Of two lines for one destination the last one
/// counts.
///
/// # Errors
/// When reading fails.
pub fn read_routes(
    from: impl BufRead,
    file: &File,
    endpoints: &[Endpoint],
    warnings: &mut Warnings,
) -> io::Result<Vec<Path>> {
    let (mut reading, file) = (Reading::default(), named(file));
    each_line(from, &file, warnings, |at, line, warnings| match section(line) {
        Some(Ok(begin)) => reading.begin(at, begin, endpoints, &file, warnings),
        Some(Err(())) => {
            reading.from.clear();
            let what = format!(
                "{} is not a section head, and the section is ignored",
                shown(line)
            );
            warnings.push(&file, at, what, "expected: Channel Adapter 0xGUID, base LID N, …");
        }
        // Lines of other hosts are skipped unparsed: there are a great many of them.
        None if reading.in_section && reading.from.is_empty() => {}
        None => match row(line) {
            Some((to, Some(row))) => {
                let rows = reading.from.iter().map(|from| ((*from, to), (at, row)));
                reading.rows.extend(rows);
            }
            Some((to, None)) => {
                let rows = &mut reading.rows;
                reading.from.iter().for_each(|from| _ = rows.remove(&(*from, to)));
            }
            None => {
                let what = format!("{} is not a path and is ignored", shown(line));
                warnings.push(
                    &file,
                    at,
                    what,
                    "expected: LID : SL : MTU : RATE, the last two as codes",
                );
            }
        },
    })?;
    if reading.guids.is_empty() {
        let what = "the file has no section".to_owned();
        warnings.push(
            &file,
            0,
            what,
            "expected OpenSM's dump of full path records, version 1",
        );
    }
    Ok(reading.paths(endpoints, &file, warnings))
}

/// Returns the GID of a port with this GUID in the subnet of `near`.
fn gid(near: Gid, guid: u64) -> Gid {
    let mut gid = near;
    gid.0[8..].copy_from_slice(&guid.to_be_bytes());
    gid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::DEFAULT_PKEY;

    const DUMP: &str = "# of OpenSM\n\
        Switch 0x0002c90200404a10, base LID 1, LMC 0, port 0\n\
        # LID  : SL : MTU : RATE\n\
        0x0001 : 0  : 4 : 3\n\
        0x0006 : 0  : 4 : 3\n\
        Channel Adapter 0x0002c9030002faed, base LID 6, LMC 0, port 1\n\
        # LID  : SL : MTU : RATE\n\
        0x0001 : 0  : 4 : 3\n\
        0x0006 : 0  : 5 : 7\n\
        0x0007 : 3  : 132 : 135\n\
        0x0008 : UNREACHABLE\n\
        0x0009 : 0 : 4 : 3\n\
        Channel Adapter 0x0002c9030002fb00, base LID 7, LMC 0, port 1\n\
        0x0001 : 0  : 4 : 3\n";

    fn own() -> Endpoint {
        Endpoint {
            device: "mlx4_0".to_owned(),
            other_names: Vec::new(),
            guid: 0x0002_c903_0002_faec,
            interface: 0,
            port: 1,
            ports: 1,
            pkey: DEFAULT_PKEY,
            link: Link::InfiniBand,
            gid: gid("fe80::".parse().unwrap(), 0x0002_c903_0002_faed),
            lid: 6,
            mtu: Mtu::MAX,
            rate: Rate::within(40_000),
            subnet_timeout: 18,
            addresses: Vec::new(),
            networks: Vec::new(),
        }
    }

    fn read(text: &str) -> (Vec<Path>, Vec<String>) {
        let mut warnings = Warnings::default();
        let paths = read_routes(text.as_bytes(), File::new("routes"), &[own()], &mut warnings).unwrap();
        (paths, warnings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn only_paths_of_this_host_are_kept_and_their_ends_have_gids() {
        let (paths, said) = read(DUMP);
        let lids: Vec<u16> = paths.iter().map(|path| path.dlid).collect();
        assert_eq!(lids, [1, 6, 7]);
        let last = &paths[2];
        assert_eq!(last.dgid, gid(own().gid, 0x0002_c903_0002_fb00));
        assert_eq!((last.sgid, last.slid, last.sl), (own().gid, 6, 3));
        assert_eq!(last.mtu.map(Mtu::bytes), Some(2048));
        assert_eq!(last.rate.map(Rate::megabits), Some(40_000));
        assert_eq!((paths[1].packet_lifetime, last.packet_lifetime), (0, 18));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("routes:12: no section has base LID 9"),
            "{}",
            said[0]
        );
    }

    #[test]
    fn what_is_no_path_is_left_out_and_said() {
        let begin = "Channel Adapter 0x0002c9030002faed, base LID 6, LMC 0\n";
        let bad = [
            "6 : 16 : 4 : 3",
            "6 : 0 : 6 : 3",
            "6 : 0 : 4 : 1",
            "6 : 0 : 4",
            "0xc000 : 0 : 4 : 3",
            "0 : 0:4:3",
            "x",
        ];
        for line in bad {
            let (paths, said) = read(&format!("{begin}{line}\n"));
            assert_eq!((paths.len(), said.len()), (0, 1), "{line}: {said:?}");
            assert!(said[0].starts_with("routes:2:"), "{}", said[0]);
        }
        let (paths, said) = read("Channel Adapter fine, base LID 6\n6 : 0 : 4 : 3\n");
        assert_eq!(paths.len(), 0);
        assert!(said[0].contains("is not a section head"), "{said:?}");
        assert!(read("").1[0].contains("has no section"));
    }

    #[test]
    fn other_spellings_of_the_same_are_read() {
        let (paths, said) =
            read("Channel Adapter 0x2c9030002faed, base LID 0x6, LMC 0\n6:0:4:3\n6: 1 :5: 7\n");
        assert!(said.is_empty(), "{said:?}");
        assert_eq!((paths.len(), paths[0].sl), (1, 1), "the later wins");
    }
}
