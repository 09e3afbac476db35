//! A rail of either contract: messages of the simulator, or its frames with a BTL over them.

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_job::rails::AnyRail;
use doorbell_sim::{Plane, SimNet};

use crate::failure::Kind;

/// Attaches a rank to a plane: to one of messages, or of `frames`.
pub(crate) fn attach(
    net: &SimNet,
    rank: u32,
    plane: Plane,
    frames: bool,
    btl: &BtlConfig,
    key: [u8; 32],
) -> Result<AnyRail, Kind> {
    if !frames {
        return Ok(AnyRail::Sim(net.attach_rank(rank, plane)));
    }
    let driver = net.attach_datagram_rank(rank, plane);
    let life = driver.incarnation();
    let mut rail = Btl::new(driver, btl.clone(), life).map_err(|error| Kind::Other(error.to_string()))?;
    rail.set_key(JobKey::from_bytes(key));
    Ok(AnyRail::SimBtl(rail))
}

/// What is taken of a rail and should not be, when all is done.
pub(crate) fn leftovers(rail: &AnyRail, peers: usize) -> Option<String> {
    match rail {
        AnyRail::Sim(rail) => match rail.exposed() {
            0 => None,
            exposed => Some(format!("{exposed} exposed pieces of memory")),
        },
        AnyRail::SimBtl(rail) => {
            // A room for each peer that is looked after.
            let used = rail.in_use();
            let rooms = used.rooms.saturating_sub(peers);
            let used = doorbell_btl::InUse { rooms, ..used };
            (used != doorbell_btl::InUse::default()).then(|| format!("{used:?}"))
        }
        _ => Some("a rail that is not simulated".to_owned()),
    }
}
