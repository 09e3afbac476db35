//! The PML over a rail that costs nothing.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::message::Incarnation;
use doorbell_pml::{Pml, PmlConfig, Rank};
use doorbell_sim::NullRail;

/// Returns rank 0 of two, over the null rail. The window is never full: no peer acknowledges.
pub(crate) fn pml(tag: u64, payload: usize) -> Pml<NullRail> {
    let mut config = PmlConfig::new(Rank(0), 2, 0x5eed);
    config.window = 1 << 36;
    config.hard_window = 1 << 36;
    let mut pml = Pml::new(config).expect("a good configuration");
    let rail = pml.add_rail(NullRail::new(tag, payload)).expect("there is room");
    pml.connect(Rank(1), rail, &RailAddress::native("sim", [0]), Incarnation(1))
        .expect("it opens");
    pml
}
