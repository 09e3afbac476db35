//! Placement of ranks on hosts: `--hosts a:2,b:2`.

use std::net::Ipv6Addr;

use super::here::are_same;

/// A host of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// Its name for the remote shell.
    pub(super) name: String,
    /// Its first rank.
    pub(super) first: u32,
    /// The number of its ranks.
    pub(super) ranks: u32,
}

/// Maximum bytes of a host's name.
const NAME: usize = 255;

/// Parses a list of hosts, each with an optional colon and number of ranks.
///
/// # Errors
/// A message for the user.
pub(super) fn named(list: &str) -> Result<Vec<(String, Option<u32>)>, String> {
    let mut wanted: Vec<(String, Option<u32>)> = Vec::new();
    for text in list.split([',', ' ', '\n']).filter(|text| !text.is_empty()) {
        let (name, room) = host(text)?;
        if wanted.iter().any(|(known, _)| are_same(known, &name)) {
            return Err(format!(
                "host `{name}` is named twice: write it once, as in {}:2",
                written(&name)
            ));
        }
        wanted.push((name, room));
    }
    if wanted.is_empty() {
        return Err("no host is named: write them as in --hosts node1:2,node2:2".to_owned());
    }
    Ok(wanted)
}

/// Formats a host as it appears in a list.
pub(super) fn written(name: &str) -> String {
    match name.contains(':') {
        true => format!("[{name}]"),
        false => name.to_owned(),
    }
}

/// Places `ranks` on the hosts of a list, in blocks. Without numbers all hosts get equally many, and the
/// first ones one more if needed.
///
/// # Errors
/// A message for the user.
pub(super) fn place(wanted: Vec<(String, Option<u32>)>, ranks: u32) -> Result<Vec<Host>, String> {
    let counted = wanted.iter().any(|(_, room)| room.is_some());
    if counted {
        let rooms: Vec<u32> = wanted.iter().map(|(_, room)| room.unwrap_or(1)).collect();
        let room: u64 = rooms.iter().map(|room| u64::from(*room)).sum();
        if u64::from(ranks) > room {
            return Err(format!(
                "the hosts have room for {room} ranks, and the job has {ranks}: start fewer, or give a host more, as in {}:{}",
                written(&wanted[0].0),
                rooms[0] + 1
            ));
        }
        return Ok(fill(wanted, |at, left| rooms[at].min(left), ranks));
    }
    let hosts = wanted.len() as u32;
    let each = |at: usize, left: u32| left.min(ranks / hosts + u32::from((at as u32) < ranks % hosts));
    Ok(fill(wanted, each, ranks))
}

/// Places `ranks` more of them on hosts that have this many each (`None`: not usable), one after another on
/// the first host with the fewest. Returns how many each gets.
pub(super) fn spread(alive: &[Option<u32>], ranks: u32) -> Option<Vec<u32>> {
    let mut more = vec![0; alive.len()];
    for _ in 0..ranks {
        let open = alive.iter().zip(&more).enumerate();
        let open = open.filter_map(|(at, (alive, more))| Some((alive.as_ref()? + more, at)));
        let (_, at) = open.min()?;
        more[at] += 1;
    }
    Some(more)
}

/// Hosts without a rank are left out.
fn fill(wanted: Vec<(String, Option<u32>)>, take: impl Fn(usize, u32) -> u32, ranks: u32) -> Vec<Host> {
    let mut first = 0;
    let mut hosts = Vec::with_capacity(wanted.len());
    for (at, (name, _)) in wanted.into_iter().enumerate() {
        let ranks = take(at, ranks - first);
        if ranks > 0 {
            hosts.push(Host { name, first, ranks });
        }
        first += ranks;
    }
    hosts
}

fn is_bare(text: &str) -> bool {
    let address = text.split('%').next().unwrap_or_default();
    address.parse::<Ipv6Addr>().is_ok()
}

/// Parses `name`, `name:2`, `user@name`, `[fd00::1]:2` or `fd00::1`.
fn host(text: &str) -> Result<(String, Option<u32>), String> {
    let (name, room) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, room) = rest
                .split_once(']')
                .ok_or_else(|| format!("`{text}` lacks a `]`: write an IPv6 address as in [fd00::1]:2"))?;
            match room {
                "" => (name, None),
                room => (name, Some(room.strip_prefix(':').unwrap_or("?"))),
            }
        }
        // An address without brackets cannot be followed by a number of ranks.
        None if is_bare(text) => (text, None),
        None => match text.split_once(':') {
            Some((name, room)) => (name, Some(room)),
            None => (text, None),
        },
    };
    let fits = |one: char| one.is_ascii_alphanumeric() || ".-_@:%".contains(one);
    // A name that begins with a dash would be an option of the remote shell.
    if name.is_empty() || name.len() > NAME || name.starts_with('-') || !name.chars().all(fits) {
        return Err(format!(
            "`{text}` names no host: write them as in node1:2,user@node2"
        ));
    }
    let room = match room.map(str::parse) {
        None => None,
        Some(Ok(room @ 1..=1024)) => Some(room),
        Some(_) => {
            return Err(format!(
                "`{text}` has no number of ranks from 1 to 1024 behind the colon: write it as in {name}:2"
            ));
        }
    };
    Ok((name.to_owned(), room))
}

/// Returns the placement for programs that query their launcher: `(first host, hosts, ranks on each)`.
pub(super) fn blocks(hosts: &[Host]) -> Vec<(u32, u32, u32)> {
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for (at, host) in (0..).zip(hosts) {
        match blocks.last_mut() {
            Some((_, count, ranks)) if *ranks == host.ranks => *count += 1,
            _ => blocks.push((at, 1, host.ranks)),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(list: &str, ranks: u32) -> Vec<(String, u32, u32)> {
        let hosts = place(named(list).unwrap(), ranks).unwrap();
        hosts
            .into_iter()
            .map(|host| (host.name, host.first, host.ranks))
            .collect()
    }

    fn of(list: &[(&str, u32, u32)]) -> Vec<(String, u32, u32)> {
        list.iter()
            .map(|(name, first, ranks)| ((*name).to_owned(), *first, *ranks))
            .collect()
    }

    #[test]
    fn ranks_go_in_blocks() {
        assert_eq!(placed("a,b", 4), of(&[("a", 0, 2), ("b", 2, 2)]));
        assert_eq!(placed("a,b,c", 4), of(&[("a", 0, 2), ("b", 2, 1), ("c", 3, 1)]));
        assert_eq!(placed("a,b,c", 2), of(&[("a", 0, 1), ("b", 1, 1)]));
        assert_eq!(placed("a:3,b:3", 4), of(&[("a", 0, 3), ("b", 3, 1)]));
        assert_eq!(placed("a:3,b:3", 2), of(&[("a", 0, 2)]));
        assert_eq!(placed("a:2,u@b.c", 3), of(&[("a", 0, 2), ("u@b.c", 2, 1)]));
        assert_eq!(
            placed("[fd00::1]:2,[fe80::1%eth0]", 3),
            of(&[("fd00::1", 0, 2), ("fe80::1%eth0", 2, 1)])
        );
        assert_eq!(
            placed("::1,[fd00::1]:1", 2),
            of(&[("::1", 0, 1), ("fd00::1", 1, 1)])
        );
        assert_eq!(
            placed("a:1024,b:1024", 1025),
            of(&[("a", 0, 1024), ("b", 1024, 1)])
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for (list, ranks, said) in [
            ("", 1, "no host is named"),
            ("a,a", 2, "named twice"),
            ("LOCALHOST,localhost", 2, "named twice"),
            ("a,A.", 2, "named twice"),
            ("[fd00::1]:2,FD00:0::1", 2, "as in [FD00:0::1]:2"),
            ("a:2,b:2", 5, "room for 4 ranks, and the job has 5"),
            ("a:0", 1, "from 1 to 1024"),
            ("a:x", 1, "from 1 to 1024"),
            ("[fd00::1", 1, "lacks a `]`"),
            ("[fd00::1]2", 1, "from 1 to 1024"),
            ("-oProxyCommand=x", 1, "names no host"),
            ("a;reboot", 1, "names no host"),
            (":2", 1, "names no host"),
        ] {
            let error = named(list).and_then(|list| place(list, ranks)).unwrap_err();
            assert!(error.contains(said), "{list}: {error}");
        }
    }

    #[test]
    fn more_ranks_go_where_the_fewest_are() {
        assert_eq!(spread(&[Some(2), Some(2)], 3), Some(vec![2, 1]));
        assert_eq!(spread(&[Some(3), Some(0), Some(1)], 3), Some(vec![0, 2, 1]));
        assert_eq!(spread(&[None, Some(9)], 2), Some(vec![0, 2]));
        assert_eq!(spread(&[None], 1), None);
    }

    #[test]
    fn equal_hosts_are_one_block() {
        let list = || named("a,b,c").unwrap();
        assert_eq!(blocks(&place(list(), 6).unwrap()), [(0, 3, 2)]);
        assert_eq!(blocks(&place(list(), 5).unwrap()), [(0, 2, 2), (2, 1, 1)]);
    }
}
