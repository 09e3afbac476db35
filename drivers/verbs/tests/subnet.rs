//! Requests to the administration of a simulated subnet, which is a real OpenSM.

use std::thread::sleep;
use std::time::{Duration, Instant};

use doorbell_testing::subnet::{Subnet, node};
use doorbell_verbs::subnet::{Answer, Components, MemberRecord, PathRecord, Refusal, Request, SubnetPort};
use zerocopy::FromZeros;

const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\nBlue=0x0002, sl=5 : ALL=full;\n";
const DEVICE: &str = "ibsim0";
/// How long the administration may take for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Repeats a request until there is an answer: a manager that has just begun is silent or busy at first.
fn answer(port: &mut SubnetPort, request: &Request) -> Answer {
    let begun = Instant::now();
    let mut transaction = 0;
    let mut last = None;
    while begun.elapsed() < PATIENCE {
        transaction += 1;
        let asked = port.ask(transaction, request, Duration::from_secs(1), 2);
        let until = Instant::now() + Duration::from_secs(2);
        while asked.is_ok() && Instant::now() < until {
            match port.next_reply().expect("the port works") {
                Some(reply) if reply.transaction == transaction => match reply.answer {
                    Some(Answer::Refused(Refusal::Busy)) | None => break,
                    Some(answer) => return answer,
                },
                _ => sleep(Duration::from_millis(5)),
            }
        }
        last = Some(asked);
        sleep(Duration::from_millis(100));
    }
    panic!("no answer to {request:?}: {last:?}");
}

fn gid(number: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[13..].copy_from_slice(&[0x10, 0, number]);
    gid
}

/// Ports of a simulated host channel adapter follow its own number.
const OWN: u8 = 4;
const OTHER: u8 = 7;

#[test]
fn paths_and_groups_of_a_real_manager() {
    if node().is_none() {
        let Some(subnet) = Subnet::start("paths_and_groups_of_a_real_manager", PARTITIONS) else {
            return;
        };
        return subnet
            .again("paths_and_groups_of_a_real_manager", "node2")
            .unwrap();
    }
    let mut port = SubnetPort::open(DEVICE, 1).unwrap();
    let mut path = PathRecord::new_zeroed();
    (path.sgid, path.dgid) = (gid(OWN), gid(OTHER));
    path.reversible_and_count = 0x81;
    let ends = Components::SGID.and(Components::DGID).and(Components::NUM_PATH);
    let components = ends.and(Components::REVERSIBLE);
    // One that names no partition gets a path in any that both ends are in.
    path.pkey = 0xffff.into();
    let components = components.and(Components::PATH_PKEY);
    let Answer::Path(usual) = answer(&mut port, &Request::Path(path, components)) else {
        panic!("a path");
    };
    assert_eq!((usual.pkey.get(), usual.qos_and_sl.get() & 0xf), (0xffff, 0));
    assert!(usual.dlid.get() != 0 && usual.slid.get() != 0);
    path.pkey = 0x8002.into();
    let blue = Request::Path(path, components);
    let Answer::Path(blue) = answer(&mut port, &blue) else {
        panic!("a path");
    };
    assert_eq!((blue.pkey.get(), blue.qos_and_sl.get() & 0xf), (0x8002, 5));
    path.dgid = gid(0xee);
    let nowhere = answer(&mut port, &Request::Path(path, components));
    assert!(matches!(nowhere, Answer::Refused(_)), "{nowhere:?}");

    let mut member = MemberRecord::new_zeroed();
    member.group[..9].copy_from_slice(&[0xff, 0x15, 0x40, 0x01, 0xff, 0xff, 0, 3, 4]);
    member.port = gid(OWN);
    member.scope_and_state = 0x51;
    let few = Components::GROUP
        .and(Components::PORT)
        .and(Components::JOIN_STATE);
    assert_eq!(
        answer(&mut port, &Request::Join(member, few)),
        Answer::Refused(Refusal::Insufficient)
    );
    member.qkey = 0x8001_0000.into();
    member.pkey = 0xffff.into();
    let many = few
        .and(Components::QKEY)
        .and(Components::PKEY)
        .and(Components::TCLASS);
    let many = many.and(Components::SL).and(Components::FLOW_LABEL);
    let Answer::Joined(joined) = answer(&mut port, &Request::Join(member, many)) else {
        panic!("a membership");
    };
    assert!(joined.lid.get() >= 0xc000, "{joined:?}");
    assert_eq!((joined.group, joined.qkey.get()), (member.group, 0x8001_0000));
    let Answer::Left(_) = answer(&mut port, &Request::Leave(member, few)) else {
        panic!("left");
    };
    let again = answer(&mut port, &Request::Leave(member, few));
    assert!(matches!(again, Answer::Refused(_)), "{again:?}");
    assert_eq!(port.manager().unwrap(), 1);
}
