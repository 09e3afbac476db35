//! A PML above a rail that hands over what it is given, with two peers: what the fuzzers of the PML attack.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Features;
use doorbell_fabric::message::Incarnation;
use doorbell_pml::{Pml, PmlConfig, Rank};

use self::feed::FeedRail;

#[allow(dead_code)]
#[path = "../../../pml/tests/it/feed.rs"]
pub(crate) mod feed;

/// Bytes that a peer may have under way: the bound.
pub(crate) const HARD: u64 = 64 << 10;

/// Makes it, of rank 0, with peers 1 and 2. Bits of `settings` choose what the rail can do.
pub(crate) fn pml(settings: u8) -> Pml<FeedRail> {
    let mut config = PmlConfig::new(Rank(0), 3, 1);
    (config.window, config.hard_window) = (HARD / 2, HARD);
    let mut pml = Pml::new(config).expect("good settings");
    let features = Features {
        get: settings & 1 == 0,
        put: settings & 2 == 0,
        atomics: false,
        gather: settings & 4 == 0,
        reclaim: true,
        within_host: false,
        checksum: false,
        port: 0,
    };
    let rail = pml.add_rail(FeedRail::new(features)).expect("there is room");
    for rank in [1, 2] {
        let address = RailAddress::native("sim", [0]);
        pml.connect(Rank(rank), rail, &address, Incarnation(1))
            .expect("it opens");
    }
    pml
}

/// Judges that what is kept of each peer's messages stays within its bound.
pub(crate) fn judge_kept(pml: &Pml<FeedRail>) {
    for rank in [1, 2] {
        let peer = pml.peer(Rank(rank)).expect("it is in the job");
        let kept = peer.unexpected + peer.held;
        assert!(kept as u64 <= HARD / 64, "{kept} messages are kept");
    }
}
