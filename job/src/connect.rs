//! Opens peers over the rails that lead to them, for the layer above the rails: the PML, or a Portals node.

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::gid::{Port, explain, table};
use doorbell_fabric::message::{Message, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{Place, Side};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::select::{Choice, Judged, Offer, Published, Reach, Selection, select};
use doorbell_pml::{Pml, RailId, Rank};
use doorbell_verbs::subnet::PathRecord;

use crate::acm::{self, Resolution};
use crate::config::Config;
use crate::error::Error;
use crate::meet::{Key, RailEntry, RankInfo};
use crate::rails::{AnyRail, Manage as _, reason_of};
use crate::ranks::Directory;

/// One peer over one rail, by the rail's own number of the peer: for one-sided operations.
#[derive(Clone, Copy, Debug)]
pub struct PeerPath {
    /// The rail at this end.
    pub rail: RailId,
    /// The number that our rail gave the peer.
    pub peer: PeerIndex,
    /// The index of the rail at the other end, among the peer's rails.
    pub other: u16,
}

/// The layer above the rails of this rank: it owns them, and opens peers over them.
pub trait RailOwner {
    /// Returns the rails with their numbers.
    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)>;

    /// Adds a rail, before any peer is opened.
    ///
    /// # Errors
    /// When the rail does not suit the layer.
    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error>;

    /// Returns a rail by its number.
    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail>;

    /// Opens a rank over a rail; `to` is the rail at its end. The n-th call for a rank makes its path n,
    /// numbered alike at both ends.
    ///
    /// # Errors
    /// When the rail cannot reach that address.
    fn open(&mut self, rank: u32, rail: RailId, to: &RailEntry) -> Result<(), Error>;
}

impl RailOwner for Pml<AnyRail> {
    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error> {
        self.add_rail(rail)?;
        Ok(())
    }

    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)> {
        self.rails()
    }

    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail> {
        self.rail_mut(rail)
    }

    fn open(&mut self, rank: u32, rail: RailId, to: &RailEntry) -> Result<(), Error> {
        Ok(self.connect(Rank(rank), rail, &to.address, to.life())?)
    }
}

/// Gives the job's key to the rails, and the rails to the layer above them; returns the modes of rails whose
/// kind has several.
///
/// # Errors
/// When a rail does not suit the layer.
pub fn add_rails(
    owner: &mut impl RailOwner,
    rails: Vec<AnyRail>,
    key: &Key,
) -> Result<Vec<(String, String)>, Error> {
    let mut modes = Vec::new();
    for mut rail in rails {
        modes.extend(rail.how().map(|how| (rail.name().to_string(), how)));
        rail.set_job_key(key);
        owner.add_rail(rail)?;
    }
    Ok(modes)
}

/// Returns what the rails to a rank recorded last: a heading for each rail, and at most `most` lines of each
/// path.
pub fn recorded<'a>(
    rail: impl Fn(RailId) -> Option<&'a AnyRail>,
    paths: &[PeerPath],
    rank: u32,
    most: usize,
) -> Vec<String> {
    let mut lines = Vec::new();
    for path in paths {
        let Some(rail) = rail(path.rail) else { continue };
        let recent = rail.recent(path.peer, most);
        if !recent.is_empty() {
            lines.push(format!(
                "{} recorded about rank {rank}, newest last:",
                rail.name()
            ));
            lines.extend(recent);
        }
    }
    lines
}

/// The RDMA ports at both ends of a path, as the ranks `own` and `rank` have published them: of our rail of
/// this name, and of the peer's rail of this index. `None` for rails of other kinds.
fn ports<'a>(
    directory: &'a Directory,
    own: u32,
    (rank, other): (u32, u16),
    rail: &str,
) -> Option<[&'a Port; 2]> {
    let ours = directory.rank_info(own)?;
    let ours = ours.rails.iter().find(|entry| entry.name == rail)?;
    let theirs = directory.rank_info(rank)?.rails.get(usize::from(other))?;
    Some([ours.place.port.as_ref()?, theirs.place.port.as_ref()?])
}

/// Describes the pair of GIDs that a path uses, and why each pair that comes before it is not used; nothing
/// for paths that do not lead over RDMA ports.
pub fn gids(directory: &Directory, own: u32, to: (u32, u16), rail: &str) -> Vec<String> {
    let ports = ports(directory, own, to, rail);
    ports.map_or_else(Vec::new, |[ours, theirs]| explain(&ours.gids, &theirs.gids))
}

/// Formats both tables of GIDs, for a connection that is refused because both ends choose different pairs.
pub fn gid_tables(directory: &Directory, own: u32, to: (u32, u16), rail: &str) -> Option<String> {
    let [ours, theirs] = ports(directory, own, to, rail)?;
    let [ours, theirs] = [ours, theirs].map(|port| table(&port.gids));
    Some(format!(
        "our GIDs, as published: {ours}; those of rank {}: {theirs}",
        to.0
    ))
}

/// Chooses the rails to every peer and opens the peer over them, unless peers are opened when they are
/// needed.
pub fn meet_at_once(
    owner: &mut impl RailOwner,
    config: &Config,
    candidates: &[Candidate],
    rank: u32,
    directory: &Directory,
) -> Result<Vec<Vec<PeerPath>>, Error> {
    let mut all_paths = vec![Vec::new(); directory.size() as usize];
    let itself = Selection {
        peer: format!("rank {rank}"),
        rails: Vec::new(),
    };
    directory.choose(rank, itself);
    if directory.is_lazy() {
        return Ok(all_paths);
    }
    let own = directory.rank_info(rank).ok_or_else(|| Error::Job {
        reason: "this rank is missing from the table of ranks".to_owned(),
    })?;
    let resolutions = acm::consult(config, own, directory.rank_infos());
    acm::report_fallback(rank, &resolutions);
    give_paths(owner, resolutions.iter().filter_map(Resolution::record));
    directory.resolved(resolutions);
    for peer in directory.rank_infos().filter(|peer| peer.rank != rank) {
        let (selection, paths) = connect(owner, config, candidates, own, peer)?;
        directory.choose(peer.rank, selection);
        all_paths[peer.rank as usize] = paths;
    }
    Ok(all_paths)
}

/// Gives paths between ports of InfiniBand to the rails, which use those that begin at their ports; before
/// the peers are opened.
pub fn give_paths<'a>(owner: &mut impl RailOwner, records: impl IntoIterator<Item = &'a PathRecord>) {
    let rails: Vec<RailId> = owner.each_rail().map(|(id, _)| id).collect();
    for record in records {
        for id in &rails {
            if let Some(rail) = owner.rail_mut(*id) {
                rail.give_path(record);
            }
        }
    }
}

/// Opens a peer over every pair of rails that both ends derive from what the two have published
/// (`doorbell_fabric::pairs`).
///
/// A pair's place in that list is its number, by which the two ends name it to each other. So the layer above
/// opens the pairs in this order, and leaves none out: a pair that this end cannot open, while the other end
/// counts on it, is an error of the job that names the rail and the reason. Leaving it out would take an
/// agreement of both ends; ranks of one host share one routing table, and for two hosts the user can name the
/// rails.
pub fn connect(
    owner: &mut impl RailOwner,
    config: &Config,
    candidates: &[Candidate],
    own: &RankInfo,
    peer: &RankInfo,
) -> Result<(Selection, Vec<PeerPath>), Error> {
    let selection = choose(owner, config, candidates, own, peer)?;
    selection.require()?;
    let chosen: Vec<Pairing> = selection
        .rails
        .iter()
        .filter_map(|judged| pairing(owner, peer, judged))
        .collect();
    let mut by_number = chosen.clone();
    by_number.sort_unstable_by_key(|pairing| pairing.number);
    for pairing in by_number {
        owner.open(peer.rank, pairing.rail, &peer.rails[pairing.other])?;
    }
    // In the order of preference: a one-sided operation takes the first that can do it.
    let paths: Result<Vec<Option<PeerPath>>, Error> = chosen
        .into_iter()
        .map(|pairing| path_over(owner, peer, pairing))
        .collect();
    Ok((selection, paths?.into_iter().flatten().collect()))
}

/// A rail of ours and the peer's rail at the other end.
#[derive(Clone, Copy, Debug)]
struct Pairing {
    /// The number by which both ends name the pair.
    number: usize,
    rail: RailId,
    /// The index of the other end among the peer's rails.
    other: usize,
}

/// Judges every rail of ours towards a peer, from what both have published.
fn choose(
    owner: &mut impl RailOwner,
    config: &Config,
    candidates: &[Candidate],
    own: &RankInfo,
    peer: &RankInfo,
) -> Result<Selection, Error> {
    let [ours, theirs] = [own, peer].map(|info| info.rails.iter().map(offer).collect::<Option<Vec<Offer>>>());
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return Err(Error::Disagreement {
            reason: format!(
                "rank {} or {} publishes a rail without a name",
                own.rank, peer.rank
            ),
        });
    };
    let published = Published {
        ours: Side {
            host: &own.host,
            rails: &ours,
        },
        theirs: Side {
            host: &peer.host,
            rails: &theirs,
        },
        lower: own.rank < peer.rank,
    };
    let selection = select(
        &format!("rank {}", peer.rank),
        candidates,
        published,
        &config.rails.list.get().0,
        |rail, offer| reach(owner, own, peer, rail, offer),
    );
    Ok(match *config.rails.of_sets.get() {
        true => selection.by_any(),
        false => selection,
    })
}

/// Returns the pair that a rail was chosen for.
fn pairing(owner: &impl RailOwner, peer: &RankInfo, judged: &Judged) -> Option<Pairing> {
    let Choice::Chosen { pair, to, .. } = &judged.choice else {
        return None;
    };
    Some(Pairing {
        number: *pair,
        rail: rail_of(owner, &judged.rail)?,
        other: entry_of(peer, to)?,
    })
}

/// Returns the path to a peer over a rail that is open to it: opening it again returns the same number of the
/// peer, which one-sided operations need.
fn path_over(
    owner: &mut impl RailOwner,
    peer: &RankInfo,
    pairing: Pairing,
) -> Result<Option<PeerPath>, Error> {
    let entry = &peer.rails[pairing.other];
    let Some(rail) = owner.rail_mut(pairing.rail) else {
        return Ok(None);
    };
    Ok(Some(PeerPath {
        rail: pairing.rail,
        peer: rail.open(&entry.address, entry.life())?,
        other: pairing.other as u16,
    }))
}

/// Converts what a rank published about a rail for selection; `None` where the rail's name does not parse.
fn offer(entry: &RailEntry) -> Option<Offer> {
    Some(Offer {
        rail: entry.name.parse().ok()?,
        wire: entry.wire.clone(),
        address: entry.address.clone(),
        place: entry.place.clone(),
    })
}

fn rail_of(owner: &impl RailOwner, name: &RailName) -> Option<RailId> {
    owner
        .each_rail()
        .find(|(_, rail)| rail.name() == name)
        .map(|(id, _)| id)
}

fn entry_of(peer: &RankInfo, offer: &Offer) -> Option<usize> {
    peer.rails
        .iter()
        .position(|entry| entry.name == offer.rail.as_str() && entry.address == offer.address)
}

/// Returns why full packets of one of two rails would never arrive at the other, if so.
///
/// An interface takes packets of up to its MTU; mapped queues take what fits their chunks, whatever the MTU
/// of the link; a port drops datagrams above its own MTU. Both ends come to the same result, since it depends
/// only on what both published. Packets within a host (`is_within`) pass the loopback interface alone, unless
/// they are for a queue.
fn too_long(ours: (&RailName, &Place), theirs: (&RailName, &Place), is_within: bool) -> Option<String> {
    let pairs = [(ours, theirs), (theirs, ours)];
    pairs.into_iter().find_map(|((sender, from), (receiver, to))| {
        let (longest, most) = (from.mtu, to.takes);
        let passes_interface = match receiver.kind() {
            "xdp" | "igbvf" | "usnic" => true,
            "udp" => !is_within,
            // Connections agree on the smaller MTU.
            _ => receiver.wire() == "verbs-ud",
        };
        let lost = passes_interface && most > 0 && longest > most;
        lost.then(|| {
            let remedy = match receiver.kind() {
                "verbs" => "give both ports, or their interfaces, the same MTU".to_owned(),
                _ => format!("set udp.mtu={most} (DOORBELL_UDP_MTU) on both sides"),
            };
            format!(
                "{sender} sends packets of up to {longest} bytes and {receiver} takes {most} at most: {remedy}"
            )
        })
    })
}

/// Whether a rail of ours can open the peer at that address, according to the rail and the system's tables.
/// Opening sends nothing.
fn reach(
    owner: &mut impl RailOwner,
    own: &RankInfo,
    peer: &RankInfo,
    rail: &RailName,
    offer: &Offer,
) -> Reach {
    let no = |reason: String| Reach::No { reason };
    let Some((id, other)) = rail_of(owner, rail).zip(entry_of(peer, offer)) else {
        return no("the rail is not open".to_owned());
    };
    let Some(rail) = owner.rail_mut(id) else {
        return no("the rail is not open".to_owned());
    };
    let place = rail.place();
    let is_within = own.host == peer.host && place.network == offer.place.network;
    if let Some(reason) = too_long((rail.name(), &place), (&offer.rail, &offer.place), is_within) {
        return no(reason);
    }
    match rail.open(&offer.address, peer.rails[other].life()) {
        Ok(_) => Reach::Yes {
            latency_ns: rail.capabilities().estimate.latency_ns,
            measured: false,
        },
        Err(error) => no(reason_of(error)),
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::gid::{Gid, Kind, Link, Published as PublishedGid};

    use super::*;

    /// A rank whose first rail is of a port with these addresses, and whose second is of none.
    fn rank_info(rank: u32, addresses: &[[u8; 4]]) -> RankInfo {
        let gids = addresses.iter().map(|address| PublishedGid {
            gid: Gid(std::net::Ipv4Addr::from(*address).to_ipv6_mapped().octets()),
            kind: Kind::RoceV2,
            prefix: 24,
        });
        let port = Port {
            link: Link::Ethernet,
            partition: 0xffff,
            gids: gids.collect(),
        };
        let entry = |name: &str, port| RailEntry {
            name: name.to_owned(),
            wire: "verbs".to_owned(),
            address: doorbell_fabric::addr::RailAddress::native("verbs", Vec::new()),
            incarnation: 1,
            features: Vec::new(),
            eager: 0,
            place: Place {
                port,
                ..Place::default()
            },
        };
        let rails = vec![entry("verbs:a:1", Some(port)), entry("shm", None)];
        RankInfo::of_this_process(rank, 2, std::collections::BTreeMap::new(), rails).unwrap()
    }

    #[test]
    fn a_path_over_ports_has_its_pair_and_both_tables_and_others_have_none() {
        let directory = Directory::whole(vec![
            rank_info(0, &[[10, 1, 0, 1], [10, 2, 0, 1]]),
            rank_info(1, &[[10, 2, 0, 9]]),
        ]);
        assert_eq!(
            gids(&directory, 0, (1, 0), "verbs:a:1"),
            [
                "10.2.0.1 with 10.2.0.9 (RoCE v2, in one network)",
                "not 10.1.0.1 with 10.2.0.9: they are in two networks, and the pair in use is in one",
            ]
        );
        assert_eq!(
            gid_tables(&directory, 1, (0, 0), "verbs:a:1").unwrap(),
            "our GIDs, as published: 10.2.0.9/24 (RoCE v2); those of rank 0: 10.1.0.1/24 (RoCE v2), 10.2.0.1/24 \
             (RoCE v2)"
        );
        for (to, rail) in [
            ((1, 1), "verbs:a:1"),
            ((1, 0), "shm"),
            ((1, 7), "verbs:a:1"),
            ((9, 0), "verbs:a:1"),
        ] {
            assert!(
                gids(&directory, 0, to, rail).is_empty() && gid_tables(&directory, 0, to, rail).is_none()
            );
        }
    }

    #[test]
    fn datagrams_that_the_other_port_would_drop_are_refused_at_both_ends() {
        let judged = |kind: &str, ours: usize, theirs: usize| {
            let name: RailName = kind.parse().unwrap();
            let place = |mtu| Place {
                mtu,
                takes: mtu,
                ..Place::default()
            };
            let (ours, theirs) = (place(ours), place(theirs));
            let [here, there] = [(&ours, &theirs), (&theirs, &ours)]
                .map(|(one, other)| too_long((&name, one), (&name, other), false));
            assert_eq!(here, there, "the same at both ends");
            here
        };
        let refused = judged("verbs:mlx5_0:1:ud", 4096, 1024).unwrap();
        assert!(
            refused.contains("up to 4096 bytes")
                && refused.contains("takes 1024")
                && refused.contains("the same MTU"),
            "{refused}"
        );
        assert_eq!(judged("verbs:mlx5_0:1:ud", 1024, 1024), None);
        // Connections find the MTU of the path.
        assert_eq!(judged("verbs:mlx5_0:1", 4096, 1024), None);
        let packets = judged("udp:eth0", 9000, 1500).unwrap();
        assert!(packets.contains("set udp.mtu=1500"), "{packets}");
    }
}
