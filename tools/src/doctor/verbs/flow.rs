//! Signs of loss, and what keeps packets from being lost for want of room. All of it is notes: the rail
//! repeats what is lost.

use doorbell_fabric::gid::Link as LinkLayer;
use doorbell_inet::FlowControl;
use doorbell_verbs::VerbsConfig;

use super::{At, Facts, Fix, Walk};

/// Counters that rise where packets are lost or come out of order, where a receiver was not ready, or where
/// switches mark packets. The names are the drivers'.
const OF_LOSS: [&str; 26] = [
    // mlx5
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "duplicate_request",
    "roce_adp_retrans",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
    "out_of_buffer",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    // soft-RoCE
    "out_of_seq_request",
    "rcvd_seq_err",
    "rcvd_rnr_err",
    "send_rnr_err",
    "completer_retry_err",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "send_err",
    "link_downed",
    // bnxt_re
    "to_retransmits",
    "seq_err_naks_rcvd",
    "rnr_naks_rcvd",
    "max_retry_exceeded",
];
/// The capability that gives a process Q_Keys whose highest bit is set.
const CAP_NET_RAW: u32 = 13;

/// Counters of the port that speak of loss. What they count is the past of all programs.
pub(super) fn loss(walk: &mut Walk, at: &At<'_>) {
    let folder = format!(
        "/sys/class/infiniband/{}/ports/{}/hw_counters",
        at.device, at.port
    );
    if !at.system.has(&folder) {
        return walk.not_applicable("loss", "the device has no counters of its own");
    }
    let risen: Vec<String> = OF_LOSS
        .iter()
        .filter_map(|name| {
            let count = at.system.number(&format!("{folder}/{name}"))?;
            (count > 0).then(|| format!("{name} {count}"))
        })
        .collect();
    if risen.is_empty() {
        return walk.ok("loss", "no counter of the port shows loss or congestion");
    }
    walk.note(
        "loss",
        format!("since the device is there: {}", risen.join(", ")),
        vec![Fix::hand(format!(
            "read {folder} again while it is in use: a counter that rises means loss or congestion in the network"
        ))],
    );
}

/// What keeps packets from being dropped by a full switch.
pub(super) fn flow_control(walk: &mut Walk, facts: &Facts, config: &VerbsConfig) {
    let interface = facts.port.interface.as_deref().unwrap_or("INTERFACE");
    match (facts.port.link, facts.is_soft()) {
        (LinkLayer::InfiniBand, _) => {
            return walk.ok(
                "flow-control",
                "InfiniBand's links lose no packet for want of room",
            );
        }
        (_, true) => {
            return walk.not_applicable(
                "flow-control",
                "soft-RoCE is UDP, and the rail repeats what is lost",
            );
        }
        _ => {}
    }
    let by_hand = || {
        vec![Fix::hand(format!(
            "`dcb pfc show dev {interface}` and `dcb app show dev {interface}` show it, or the vendor's own tool \
             (mlnx_qos); DOORBELL_VERBS_TRAFFIC_CLASS sets DSCP and ECN"
        ))]
    };
    match &facts.flow {
        Ok(Some(flow)) => pauses(walk, interface, flow, config),
        Ok(None) => walk.unknown(
            "flow-control",
            format!("the driver of {interface} does not answer about pauses by priority (PFC) and DSCP; the rail repeats what is lost"),
            by_hand(),
        ),
        Err(error) => walk.unknown(
            "flow-control",
            format!("the kernel does not answer about pauses by priority (PFC) of {interface}: {error}"),
            by_hand(),
        ),
    }
}

/// What the driver reports, and what becomes of the rail's packets.
fn pauses(walk: &mut Walk, interface: &str, flow: &FlowControl, config: &VerbsConfig) {
    let dscp = config.traffic_class >> 2;
    let is_by_dscp = flow.trusts_dscp.unwrap_or(!flow.by_dscp.is_empty());
    let (priority, why) = match is_by_dscp {
        true => (
            flow.priority_of(dscp),
            format!(
                "by their DSCP {dscp} (verbs.traffic_class {})",
                config.traffic_class
            ),
        ),
        false => (
            config.service_level & 7,
            "by verbs.service_level, as DSCP is not trusted".to_owned(),
        ),
    };
    let shown: Vec<String> = flow.priorities().iter().map(u8::to_string).collect();
    let paused = match shown.is_empty() {
        true => format!("{interface} pauses no priority (PFC)"),
        false => format!("{interface} pauses priority {} (PFC)", shown.join(", ")),
    };
    let counted = match (flow.sent, flow.received) {
        (Some(sent), Some(received)) => format!("; {sent} pauses sent, {received} received"),
        _ => String::new(),
    };
    let saw = format!("{paused}; the rail's packets have priority {priority} {why}{counted}");
    if flow.paused & 1 << priority != 0 {
        return walk.ok("flow-control", saw);
    }
    let mut fixes = Vec::new();
    if let (Some(paused), true) = (flow.priorities().first(), is_by_dscp) {
        let with = flow.by_dscp.iter().find(|(_, priority)| priority == paused);
        fixes.extend(with.map(|(dscp, _)| {
            Fix::run(
                format!("export DOORBELL_VERBS_TRAFFIC_CLASS={}", u16::from(*dscp) << 2),
                format!("have the rail's packets paused with priority {paused}, at all ranks"),
            )
        }));
    }
    fixes.push(Fix::hand(
        "packets that are not paused are dropped where a switch or the receiver is full, and the device repeats them: \
         where loss is counted, have the network's administrator set PFC or ECN up, at all hosts and switches alike",
    ));
    walk.note("flow-control", saw, fixes);
}

/// Whether this process may use Q_Keys whose highest bit is set, as the carrier of acm over queue pairs does.
pub(super) fn privileged_keys(walk: &mut Walk, at: &At<'_>) {
    let system = at.system;
    match system.may(CAP_NET_RAW) {
        Some(true) if !system.is_in_user_namespace() => walk.ok(
            "q-keys",
            "this process may use privileged Q_Keys (CAP_NET_RAW), which acm over queue pairs needs",
        ),
        None => walk.unknown("q-keys", "which capabilities this process has is not known", Vec::new()),
        Some(is_own) => walk.note(
            "q-keys",
            match is_own {
                true => "this process has CAP_NET_RAW in a user namespace alone, and the kernel gives privileged Q_Keys to \
                         the system's own",
                false => "this process has no CAP_NET_RAW: the kernel gives it no Q_Key whose highest bit is set, unless \
                          `rdma system` shows privileged-qkey on",
            },
            vec![Fix::hand(
                "rails need none; acm over queue pairs does, and reports it: run it as root, or `setcap cap_net_raw+ep` its \
                 program, or `rdma system set privileged-qkey on`",
            )],
        ),
    }
}
