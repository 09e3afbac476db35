//! The commands that are about one function alone: its life, its addresses, its configuration block (3.4,
//! 3.5).

use crate::devcmd::table::Command;
use crate::devcmd::{Args, errno, run};
use crate::frame;
use crate::function::{Adapter, Function, Life};
use crate::io::Context;

/// The most hardware addresses beside the own one. \[M\]
const ADDRESSES: usize = 64;
/// Bit of the NIC_CFG word: tags are taken away.
const STRIP: u64 = 1 << 24;

impl Function {
    /// The commands that are about one function alone.
    pub(crate) fn command(
        &mut self,
        context: &Context,
        adapter: &Adapter,
        command: Command,
        args: &Args,
        out: &mut Args,
    ) -> Result<(), u8> {
        use Command as C;
        let now = context.now;
        let any_order = context.options.behaviour.any_order;
        let two_part = context.after(context.options.timing.two_part);
        let going_on = |done: u64| u64::from(now < done);
        match command {
            C::Open => (self.life.opened, self.life.open_done) = (true, two_part),
            C::OpenStatus => out[0] = going_on(self.life.open_done),
            C::Init | C::InitV1 if !self.life.opened && !any_order => return Err(errno::BAD_STATE),
            C::Init | C::InitV1 => {
                (self.life.inited, self.life.init_done) = (true, two_part);
                out[0] = if command == C::InitV1 {
                    run::packed(self.mac)
                } else {
                    out[0]
                };
            }
            C::InitStatus => (out[0], out[1]) = (going_on(self.life.init_done), 0),
            C::Enable if !self.life.inited && !any_order => return Err(errno::BAD_STATE),
            C::Enable => {
                self.life.enabled = Some(true);
                // The link's state is news then: Linux's enic, with vectors, reads it only after an
                // interrupt, and an interrupt that comes before it knows that NOTIFY is done is lost on it.
                // \[M\]
                self.notify(context, adapter, true);
            }
            C::Disable => self.life.enabled = Some(false),
            C::Deinit => (self.life.inited, self.life.enabled) = (false, Some(false)),
            C::Close => {
                self.life = Life {
                    enabled: Some(false),
                    ..Life::default()
                }
            }
            C::SoftResetStatus | C::HangResetStatus => out[0] = going_on(self.life.reset_done),
            C::DevSpec => out[0] = self.spec(context, adapter, args[0], args[1])?,
            C::PacketFilter => self.takes = args[0],
            C::AddrAdd => self.add_address(run::mac(args[0]))?,
            C::AddrDel => self.addresses.retain(|mac| *mac != run::mac(args[0])),
            C::NicCfg => self.strips = args[0] & STRIP != 0,
            C::Iar => self
                .io
                .raise(context, ("devcmd", 0), u32::try_from(args[0]).unwrap_or(u32::MAX)),
            C::VlanRewrite if args[0] > 3 => return Err(errno::INVALID),
            C::VlanRewrite => (self.vlan_mode, out[0]) = (args[0], 0),
            C::DefaultVlan => out[0] = std::mem::replace(&mut self.default_vlan, args[0]),
            // µs × 2 / 3: ticks of 1.5 µs, up to 0xffff of them. [M]
            C::IntrCoalConvert => (out[0], out[1], out[2]) = (2, 3, 0xffff * 3 / 2),
            C::InitDevcmd2 => {
                let second = self.devcmd2.as_mut().ok_or(errno::UNKNOWN)?;
                if !second.set_results(args[0], args[1]) {
                    return Err(errno::INVALID);
                }
            }
            C::HangNotify | C::VlanAdd | C::VlanDel | C::RssKey | C::RssCpu => {}
            _ => return Err(errno::UNKNOWN),
        }
        Ok(())
    }

    fn add_address(&mut self, mac: [u8; 6]) -> Result<(), u8> {
        if self.addresses.contains(&mac) {
            return Ok(());
        }
        if self.addresses.len() >= ADDRESSES {
            return Err(errno::NO_RESOURCES);
        }
        self.addresses.push(mac);
        Ok(())
    }

    /// DEV_SPEC: some bytes of the configuration block (3.5).
    fn spec(&self, context: &Context, adapter: &Adapter, at: u64, size: u64) -> Result<u64, u8> {
        if !matches!(size, 1 | 2 | 4 | 8) {
            return Err(errno::INVALID);
        }
        let mut block = [0u8; 128];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let counts = context.options.counts;
        // RXCSUM, TXCSUM, and that usNIC is configured.
        put(0, &(0x4u32 | 0x8 | 0x2000).to_le_bytes());
        put(4, &4096u32.to_le_bytes());
        put(8, &4096u32.to_le_bytes());
        put(12, &(adapter.link.mtu as u16).to_le_bytes());
        put(18, b"model-vnic");
        put(42, &(counts.rq as u16).to_le_bytes());
        // [M] Where the window begins on the device's side: a multiple of 512.
        put(48, &0x10_0000u64.to_le_bytes());
        put(72, &(frame::TX_MOST as u32).to_le_bytes());
        put(108, &1500u32.to_le_bytes());
        for at in [112, 116] {
            put(at, &4096u32.to_le_bytes());
        }
        put(120, &65_536u32.to_le_bytes());
        // Unknown offsets read as zero, as old firmware has it.
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let mut value = [0; 8];
        let size = size as usize;
        if let Some(bytes) = from.checked_add(size).and_then(|end| block.get(from..end)) {
            value[..size].copy_from_slice(bytes);
        }
        Ok(u64::from_le_bytes(value))
    }
}
