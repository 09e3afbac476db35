//! How a peer is opened over the rails that lead to it, whatever stands above them: the PML, or a Portals node.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::discover::Candidate;
use doorbell_fabric::message::{Incarnation, Message, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::{Place, Side};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::select::{Choice, Judged, Offer, Published, Reach, Selection, select};
use doorbell_pml::{Pml, RailId, Rank};

use crate::acm;
use crate::config::Config;
use crate::error::Error;
use crate::meet::{Hello, Key, RailEntry};
use crate::rails::{AnyRail, Manage as _, reason_of};
use crate::ranks::Directory;

/// A way to a peer, as the rail itself numbers it: for one-sided operations.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The rail at this end.
    pub rail: RailId,
    /// The peer, as our rail numbers it.
    pub peer: PeerIndex,
    /// Which of the peer's own rails is the other end, as the peer numbers them.
    pub other: u16,
}

/// What stands above the rails of this rank, owns them, and opens its peers over them.
pub trait Above {
    /// The rails with their numbers.
    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)>;

    /// Takes a rail, before any peer is opened.
    ///
    /// # Errors
    /// A rail that is not fit for the layer.
    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error>;

    /// A rail by its number.
    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail>;

    /// Opens a rank over a rail. Its n-th call for a rank is that rank's way n, numbered alike at both ends.
    ///
    /// # Errors
    /// The rail cannot reach that address, with the reason.
    fn open(
        &mut self,
        rank: u32,
        rail: RailId,
        address: &RailAddress,
        life: Incarnation,
    ) -> Result<(), Error>;
}

impl Above for Pml<AnyRail> {
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

    fn open(
        &mut self,
        rank: u32,
        rail: RailId,
        address: &RailAddress,
        life: Incarnation,
    ) -> Result<(), Error> {
        Ok(self.connect(Rank(rank), rail, address, life)?)
    }
}

/// Gives the rails to the layer above them, with the job's key; returns the modes of those that have several.
///
/// # Errors
/// A rail that is not fit for the layer.
pub fn add_rails(
    above: &mut impl Above,
    rails: Vec<AnyRail>,
    key: &Key,
) -> Result<Vec<(String, String)>, Error> {
    let mut modes = Vec::new();
    for mut rail in rails {
        modes.extend(rail.how().map(|how| (rail.name().to_string(), how)));
        rail.set_job_key(key);
        above.add_rail(rail)?;
    }
    Ok(modes)
}

/// What the rails to a rank recorded last: at most `most` lines of each way, and a heading for each rail.
pub fn recorded<'a>(
    rail: impl Fn(RailId) -> Option<&'a AnyRail>,
    ways: &[Way],
    rank: u32,
    most: usize,
) -> Vec<String> {
    let mut lines = Vec::new();
    for way in ways {
        let Some(rail) = rail(way.rail) else { continue };
        let recent = rail.recent(way.peer, most);
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

/// Chooses the rails to every peer, and opens it over them: to all, unless they are to be met when they are needed.
pub fn meet_at_once(
    above: &mut impl Above,
    config: &Config,
    candidates: &[Candidate],
    rank: u32,
    directory: &Directory,
) -> Result<Vec<Vec<Way>>, Error> {
    let mut all_ways = vec![Vec::new(); directory.size() as usize];
    let itself = Selection {
        peer: format!("rank {rank}"),
        rails: Vec::new(),
    };
    directory.choose(rank, itself);
    if directory.is_lazy() {
        return Ok(all_ways);
    }
    let own = directory.hello(rank).ok_or_else(|| Error::Job {
        reason: "this rank has no hello".to_owned(),
    })?;
    let resolutions = acm::consult(config, own, directory.hellos());
    acm::tell(rank, &resolutions);
    directory.resolved(resolutions);
    for peer in directory.hellos().filter(|peer| peer.rank != rank) {
        let (selection, ways) = connect(above, config, candidates, own, peer)?;
        directory.choose(peer.rank, selection);
        all_ways[peer.rank as usize] = ways;
    }
    Ok(all_ways)
}

/// Opens a peer over every pair of rails that both ends find in the two hellos (`doorbell_fabric::pairs`).
///
/// The place of a pair in that list is its number, by which the two ends name it to each other. So what stands above the rails is told the pairs
/// in this order, and none may be left out: one that cannot be opened here, though the other end counts on it, is an error
/// of the job that says which and why. To leave it out, both ends would have to know; ranks of one host have one routing
/// table, and for two hosts the user names the rails.
pub fn connect(
    above: &mut impl Above,
    config: &Config,
    candidates: &[Candidate],
    own: &Hello,
    peer: &Hello,
) -> Result<(Selection, Vec<Way>), Error> {
    let selection = choose(above, config, candidates, own, peer)?;
    selection.require()?;
    let chosen: Vec<Pairing> = selection
        .rails
        .iter()
        .filter_map(|judged| pairing(above, peer, judged))
        .collect();
    let mut by_number = chosen.clone();
    by_number.sort_unstable_by_key(|pairing| pairing.number);
    for pairing in by_number {
        let entry = &peer.rails[pairing.other];
        above.open(
            peer.rank,
            pairing.rail,
            &entry.address,
            Incarnation(entry.incarnation),
        )?;
    }
    // In the order in which they were chosen: the first that can serves a one-sided operation.
    let ways: Result<Vec<Option<Way>>, Error> = chosen
        .into_iter()
        .map(|pairing| way_over(above, peer, pairing))
        .collect();
    Ok((selection, ways?.into_iter().flatten().collect()))
}

/// A rail of ours and one of the peer's, which lead to each other.
#[derive(Clone, Copy, Debug)]
struct Pairing {
    /// By which both ends name it.
    number: usize,
    rail: RailId,
    /// The place of the other one among the peer's rails.
    other: usize,
}

/// Judges every rail of ours towards a peer, by what both have published.
fn choose(
    above: &mut impl Above,
    config: &Config,
    candidates: &[Candidate],
    own: &Hello,
    peer: &Hello,
) -> Result<Selection, Error> {
    let [ours, theirs] =
        [own, peer].map(|hello| hello.rails.iter().map(offer).collect::<Option<Vec<Offer>>>());
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
    Ok(select(
        &format!("rank {}", peer.rank),
        candidates,
        published,
        &config.rails.list.get().0,
        |rail, offer| reach(above, own, peer, rail, offer),
    ))
}

/// The pair that a rail was chosen for.
fn pairing(above: &impl Above, peer: &Hello, judged: &Judged) -> Option<Pairing> {
    let Choice::Chosen { pair, to, .. } = &judged.choice else {
        return None;
    };
    Some(Pairing {
        number: *pair,
        rail: rail_of(above, &judged.rail)?,
        other: entry_of(peer, to)?,
    })
}

/// The number of the peer at a rail that was opened: opening again gives the same one, which one-sided operations need.
fn way_over(above: &mut impl Above, peer: &Hello, pairing: Pairing) -> Result<Option<Way>, Error> {
    let entry = &peer.rails[pairing.other];
    let Some(rail) = above.rail_mut(pairing.rail) else {
        return Ok(None);
    };
    Ok(Some(Way {
        rail: pairing.rail,
        peer: rail.open(&entry.address, Incarnation(entry.incarnation))?,
        other: pairing.other as u16,
    }))
}

/// What a rank published about a rail, for selection; `None`: its name is none.
fn offer(entry: &RailEntry) -> Option<Offer> {
    Some(Offer {
        rail: entry.name.parse().ok()?,
        wire: entry.wire.clone(),
        address: entry.address.clone(),
        place: entry.place.clone(),
    })
}

fn rail_of(above: &impl Above, name: &RailName) -> Option<RailId> {
    above
        .each_rail()
        .find(|(_, rail)| rail.name() == name)
        .map(|(id, _)| id)
}

fn entry_of(peer: &Hello, offer: &Offer) -> Option<usize> {
    peer.rails
        .iter()
        .position(|entry| entry.name == offer.rail.as_str() && entry.address == offer.address)
}

/// Why full packets of one of two rails would never arrive at the other: an interface takes those of its MTU,
/// and queues that are mapped take those that fit their chunks, whatever the link does. Both ends find the
/// same, by what is published. What stays within a host (`is_within`) passes no interface but the loopback,
/// unless it is for a queue.
fn too_long(ours: (&RailName, &Place), theirs: (&RailName, &Place), is_within: bool) -> Option<String> {
    let ways = [(ours, theirs), (theirs, ours)];
    ways.into_iter().find_map(|((sender, from), (receiver, to))| {
        let (longest, most) = (from.mtu, to.takes);
        let passes_interface = match receiver.kind() {
            "xdp" | "igbvf" | "usnic" => true,
            "udp" => !is_within,
            _ => false,
        };
        let lost = passes_interface && most > 0 && longest > most;
        lost.then(|| {
            format!(
                "{sender} sends packets of up to {longest} bytes and {receiver} takes {most} at most: set udp.mtu={most} \
                 (DOORBELL_UDP_MTU) on both sides"
            )
        })
    })
}

/// Whether a rail of ours can open the peer at that address, by what the rail and the system's tables say. Opening sends
/// nothing.
fn reach(above: &mut impl Above, own: &Hello, peer: &Hello, rail: &RailName, offer: &Offer) -> Reach {
    let no = |reason: String| Reach::No { reason };
    let Some((id, other)) = rail_of(above, rail).zip(entry_of(peer, offer)) else {
        return no("the rail is not open".to_owned());
    };
    let Some(rail) = above.rail_mut(id) else {
        return no("the rail is not open".to_owned());
    };
    let place = rail.place();
    let is_within = own.host == peer.host && place.network == offer.place.network;
    if let Some(reason) = too_long((rail.name(), &place), (&offer.rail, &offer.place), is_within) {
        return no(reason);
    }
    match rail.open(&offer.address, Incarnation(peer.rails[other].incarnation)) {
        Ok(_) => Reach::Yes {
            latency_ns: rail.capabilities().estimate.latency_ns,
            measured: false,
        },
        Err(error) => no(reason_of(error)),
    }
}
