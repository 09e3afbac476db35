//! A physical function that steers, and two virtual ones that exchange frames.

use doorbell_vic::Model;

use super::queues::{Pair, TLV, steer, udp};
use super::{Client, MAC_ADDR};

/// The address of the one, and of the other.
pub const A: u32 = 0x0a00_0001;
pub const B: u32 = 0x0a00_0005;

/// A physical function and two virtual ones, each with a queue pair that is steered to and runs.
pub struct Scene {
    pub pf: Client,
    pub a: Client,
    pub b: Client,
    pub at_a: Pair,
    pub at_b: Pair,
    pub mac_a: [u8; 6],
    pub mac_b: [u8; 6],
    /// The numbers of their filters.
    pub filters: (u64, u64),
}

/// A function's hardware address.
pub fn mac(client: &mut Client) -> [u8; 6] {
    let bytes = client.devcmd(MAC_ADDR, &[]).unwrap()[0].to_le_bytes();
    bytes[..6].try_into().unwrap()
}

impl Scene {
    pub fn new(model: &Model, sizes: (u32, u32)) -> Self {
        let mut scene = Self::stopped(model, sizes);
        scene.at_a.enable(&mut scene.a);
        scene.at_b.enable(&mut scene.b);
        scene
    }

    /// The same before the queues are enabled.
    pub fn stopped(model: &Model, sizes: (u32, u32)) -> Self {
        let (mut pf, mut a, mut b) = (
            Client::new(model, "pf"),
            Client::new(model, "vf0"),
            Client::new(model, "vf1"),
        );
        pf.share(TLV, 4096);
        let (mac_a, mac_b) = (mac(&mut a), mac(&mut b));
        let at_a = Pair::new(&mut a, 0, 0x1_0000_0000, sizes);
        let at_b = Pair::new(&mut b, 1, 0x2_0000_0000, sizes);
        let filters = (steer(&mut pf, 0, A, 4000, 0), steer(&mut pf, 1, B, 5000, 1));
        Self {
            pf,
            a,
            b,
            at_a,
            at_b,
            mac_a,
            mac_b,
            filters,
        }
    }

    /// A frame from the one to the other.
    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        udp(self.mac_b, self.mac_a, (A, B), (4000, 5000), payload)
    }
}
