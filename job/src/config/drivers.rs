//! The settings that a job opens its rails with. Programs that examine one driver alone, as `doorbell
//! doctor` does, use them too, so that they see the rail that a job would have.
//!
//! ```
//! # use doorbell_job as doorbell;
//! let config = doorbell::Config::default();
//! assert_eq!(doorbell::drivers::udp_config(&config), doorbell_udp::UdpConfig::default());
//! ```

use doorbell_btl::BtlConfig;
use doorbell_igbvf::{IgbvfConfig, PORT};
use doorbell_pml::{PmlConfig, Protocol as PmlProtocol, Rank, Resume as PmlResume};
use doorbell_shm::ShmConfig;
use doorbell_udp::{Family, UdpConfig};
use doorbell_usnic::{Commands, Control, UsnicConfig, VfCommands};
use doorbell_verbs::{RingUse, VerbsConfig};
use doorbell_xdp::{Mode, XdpConfig};

use super::{
    Config, IpFamily, Protocol, Resume, UsnicCommandWay, UsnicCommands, UsnicControl, VerbsRing, XdpMode, mac,
};

/// Returns the settings of the PML of a rank, in a job of `size` ranks of this configuration. `seed` is
/// random.
pub fn pml_config(config: &Config, rank: u32, size: u32, seed: u64) -> PmlConfig {
    let mut pml = PmlConfig::new(Rank(rank), size, seed);
    pml.eager_limit = config.pml.eager.get().map(|size| size.0);
    pml.protocol = match config.pml.protocol.get() {
        Protocol::Auto => PmlProtocol::Auto,
        Protocol::Fragments => PmlProtocol::Fragments,
        Protocol::Get => PmlProtocol::Get,
        Protocol::Put => PmlProtocol::Put,
    };
    pml.checksum = *config.pml.checksum.get();
    pml.inject_limit = config.pml.buffer.get().0;
    pml.window = config.pml.unexpected.get().0 as u64;
    pml.hard_window = pml.hard_window.max(pml.window.saturating_mul(16));
    pml.patience = *config.pml.patience.get();
    pml.handshake = *config.pml.handshake.get();
    pml.resume = match config.pml.resume.get() {
        Resume::Missing => PmlResume::Missing,
        Resume::FromZero => PmlResume::FromZero,
    };
    pml
}

/// Returns the settings of an shm rail, as a job of this configuration opens it.
pub fn shm_config(config: &Config) -> ShmConfig {
    let default = ShmConfig::default();
    ShmConfig {
        cma: *config.shm.cma.get(),
        help: *config.shm.help.get(),
        cells: config
            .shm
            .cells
            .get()
            .map_or(default.cells, |cells| cells as usize),
        data: config.shm.data.get().map_or(default.data, |data| data.0),
        ..default
    }
}

/// Returns the settings of a udp rail, as a job of this configuration opens it.
pub fn udp_config(config: &Config) -> UdpConfig {
    let udp = &config.udp;
    UdpConfig {
        family: match udp.family.get() {
            IpFamily::V4 => Family::V4,
            IpFamily::V6 => Family::V6,
        },
        // The bounds of the settings keep both within 16 bits.
        port: *udp.port.get() as u16,
        pairs: *udp.pairs.get() as u16,
        mtu: udp.mtu.get().map(|size| size.0),
        connected: *udp.connected.get() as usize,
        receive_buffer: udp.receive_buffer.get().0,
        send_buffer: udp.send_buffer.get().0,
        gso: *udp.gso.get(),
        gro: *udp.gro.get(),
        busy_poll: *udp.busy_poll.get(),
        ..UdpConfig::default()
    }
}

/// Returns the settings of an xdp rail, as a job of this configuration opens it. Addresses and ports are
/// those of the udp settings: both kinds send the same frames in UDP.
pub fn xdp_config(config: &Config) -> XdpConfig {
    let (udp, xdp) = (udp_config(config), &config.xdp);
    XdpConfig {
        family: udp.family,
        port: udp.port,
        pairs: udp.pairs,
        mtu: udp.mtu,
        mode: match xdp.mode.get() {
            XdpMode::Best => None,
            XdpMode::ZeroCopy => Some(Mode::ZeroCopy),
            XdpMode::Native => Some(Mode::Native),
            XdpMode::Generic => Some(Mode::Generic),
        },
        queue: *xdp.queue.get(),
        receive_ring: *xdp.receive_ring.get() as usize,
        send_ring: *xdp.send_ring.get() as usize,
        busy_poll: *xdp.busy_poll.get(),
        ..XdpConfig::default()
    }
}

/// Returns the settings of an igbvf rail. Port and MTU are those of the udp settings: both kinds send the
/// same frames in UDP. The address belongs to the function alone, and so do all of its ports.
pub(crate) fn igbvf_config(config: &Config) -> IgbvfConfig {
    let (udp, igbvf, default) = (udp_config(config), &config.igbvf, IgbvfConfig::default());
    IgbvfConfig {
        address: igbvf.address.get().clone(),
        gateway: *igbvf.gateway.get(),
        port: if udp.port == 0 { PORT } else { udp.port },
        mtu: udp.mtu.unwrap_or(default.mtu),
        receive_ring: *igbvf.receive_ring.get() as usize,
        send_ring: *igbvf.send_ring.get() as usize,
        checksum: *igbvf.checksum.get(),
        ..default
    }
}

/// Returns the settings of a verbs rail, as a job of this configuration opens it.
pub fn verbs_config(config: &Config) -> VerbsConfig {
    let (verbs, default) = (&config.verbs, VerbsConfig::default());
    VerbsConfig {
        send: *verbs.send.get() as usize,
        receive: *verbs.receive.get() as usize,
        // The bounds of the settings keep these within eight bits.
        gid_index: verbs.gid_index.get().map(|index| index as u8),
        service_level: *verbs.service_level.get() as u8,
        traffic_class: *verbs.traffic_class.get() as u8,
        partition: verbs.pkey.get().as_deref().and_then(super::bounds::partition),
        slot: verbs.slot.get().0,
        zero_copy: verbs.zero_copy.get().0,
        register: verbs.register.get().0,
        get_from: verbs.get_from.get().0,
        retry: *verbs.retry.get() as u8,
        timeout: *verbs.timeout.get() as u8,
        keep_alive: *verbs.keep_alive.get(),
        ring: match verbs.ring.get() {
            VerbsRing::Auto => RingUse::Auto,
            VerbsRing::On => RingUse::On,
            VerbsRing::Off => RingUse::Off,
        },
        ring_peers: *verbs.ring_peers.get() as usize,
        ..default
    }
}

/// Returns the settings of a usnic rail, as a job of this configuration opens it. Port and MTU are those of
/// the udp settings.
pub fn usnic_config(config: &Config) -> UsnicConfig {
    let (udp, usnic, default) = (udp_config(config), &config.usnic, UsnicConfig::default());
    UsnicConfig {
        address: usnic.address.get().clone(),
        gateway: *usnic.gateway.get(),
        port: if udp.port == 0 { PORT } else { udp.port },
        mtu: udp.mtu.unwrap_or(default.mtu),
        receive_ring: *usnic.receive_ring.get() as usize,
        send_ring: *usnic.send_ring.get() as usize,
        checksum: *usnic.checksum.get(),
        control: match usnic.control.get() {
            UsnicControl::Auto => Control::Auto,
            UsnicControl::Agent => Control::Agent,
            UsnicControl::Direct => Control::Direct,
            UsnicControl::Proxy => Control::Proxy,
        },
        agent: usnic.agent.get().as_ref().map(Into::into),
        vf_commands: match usnic.vf_commands.get() {
            UsnicCommands::Try => VfCommands::Try,
            UsnicCommands::Skip => VfCommands::Skip,
            UsnicCommands::Need => VfCommands::Need,
        },
        commands: match usnic.commands.get() {
            UsnicCommandWay::Auto => Commands::Auto,
            UsnicCommandWay::Devcmd => Commands::Devcmd,
            UsnicCommandWay::Devcmd2 => Commands::Devcmd2,
        },
        function: *usnic.function.get(),
        interrupts: *usnic.interrupts.get(),
        arp: *usnic.arp.get(),
        mac: usnic.mac.get().as_deref().and_then(mac),
        ..default
    }
}

pub(crate) fn btl_config(config: &Config) -> BtlConfig {
    let btl = &config.btl;
    BtlConfig {
        window: *btl.window.get(),
        segments: *btl.segments.get() as usize,
        max_peers: *btl.max_peers.get() as usize,
        max_reassemblies: *btl.max_reassemblies.get() as usize,
        operations: *btl.operations.get() as usize,
        exposures: *btl.exposures.get() as usize,
        eager_limit: btl.eager_limit.get().0,
        priority_limit: btl.priority_limit.get().0,
        retrans_timeout: *btl.retrans_timeout.get(),
        retrans_least: *btl.retrans_least.get(),
        retrans_tail: *btl.retrans_tail.get(),
        retrans_most: *btl.retrans_most.get(),
        max_resends_per_iteration: *btl.max_resends_per_iteration.get() as usize,
        ack_delay: *btl.ack_delay.get(),
        ack_every: *btl.ack_every.get(),
        initial_window: *btl.initial_window.get(),
        quantum: *btl.quantum.get(),
        give_up: *btl.give_up.get(),
        silence: *btl.silence.get(),
        keep_alive: *btl.keep_alive.get(),
        suspect_after: *btl.suspect_after.get(),
        connectivity_check: *btl.connectivity_check.get(),
        connectivity_ack_timeout: *btl.connectivity_ack_timeout.get(),
        connectivity_error_num_retries: *btl.connectivity_error_num_retries.get(),
        frame_mac: *btl.frame_mac.get(),
        recorder: *btl.recorder.get() as usize,
        // Only tests of the BTL set this.
        first_sequence: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_settings_are_those_of_the_parts() {
        let config = Config::default();
        assert_eq!(btl_config(&config), BtlConfig::default());
        assert_eq!(udp_config(&config), UdpConfig::default());
        assert_eq!(xdp_config(&config), XdpConfig::default());
        assert_eq!(igbvf_config(&config), IgbvfConfig::default());
        assert_eq!(verbs_config(&config), VerbsConfig::default());
        assert_eq!(usnic_config(&config), UsnicConfig::default());
    }
}
