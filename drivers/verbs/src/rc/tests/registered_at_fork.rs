//! What registered pages need on kernels that copy none of them at fork.

use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{Access, Exposure, Message, Refused};

use super::{connected, rail, small};
use crate::config::VerbsConfig;
use crate::ports::fake;
use crate::rc::core::Sizes;
use crate::rc::rail::RcRail;
use crate::sys::model::{self, ForkCalls, Spec};
use crate::ud::UdRail;
use crate::ud::open::Source;

#[test]
fn children_are_kept_from_registered_pages_before_the_first_registration() {
    model::copy_nothing_at_fork();
    let number = super::fresh();
    let name = super::device(number);
    let library = model::library(Spec::new(&name, [127, 5, (number >> 8) as u8, number as u8]));
    let source = Source {
        library,
        tree: fake::everything(),
    };
    let config = VerbsConfig::default();
    let calls = || model::fork_calls().unwrap();
    let datagrams = UdRail::open_from(
        &format!("verbs:{name}:1:ud").parse().unwrap(),
        &config,
        Source {
            library: source.library.clone(),
            tree: source.tree.clone(),
        },
    )
    .unwrap();
    assert_eq!((calls().inits, calls().before), (1, 0));
    assert!(calls().after > 0);
    let connections = format!("verbs:{name}:1").parse().unwrap();
    let rail = RcRail::open_from(&connections, &config, Sizes::of(&config), &source).unwrap();
    // Once for a process, however many rails it has.
    assert_eq!((calls().inits, calls().before), (1, 0));
    assert!(!rail.core.sizes.one_sided.pins_loans, "loans are not registered");
    drop((datagrams, rail));
}

#[test]
fn a_rail_opens_where_another_part_of_the_process_has_registered_before() {
    model::copy_nothing_at_fork();
    let number = super::fresh();
    let name = super::device(number);
    let library = model::library(Spec::new(&name, [127, 5, (number >> 8) as u8, number as u8]));
    model::registered_elsewhere();
    let source = Source {
        library,
        tree: fake::everything(),
    };
    let config = VerbsConfig::default();
    let rail = RcRail::open_from(
        &format!("verbs:{name}:1").parse().unwrap(),
        &config,
        Sizes::of(&config),
        &source,
    );
    let mut rail = rail.unwrap();
    assert_eq!(model::fork_calls().unwrap().inits, 0, "the library refuses it");
    let loan = ConstLoan::of_static(&[1; 4096]);
    let exposed = rail.expose(Exposure::Read(loan), Access::Read, None);
    assert_eq!(exposed, Err(Refused::Unsupported), "loans are not registered");
}

#[test]
fn nothing_is_requested_where_the_kernel_copies_them() {
    let _pair = connected();
    let (rail, _) = rail(small());
    assert!(rail.core.sizes.one_sided.pins_loans);
    assert_eq!(model::fork_calls(), None::<ForkCalls>);
}
