//! Properties of the matching: what is answered holds what was requested, and what is refused names a hint.

use libfabric_sys::*;
use proptest::prelude::*;

use super::answer::{MR_MODES, answer};
use super::attributes::{Attributes, Hints, RULES};
use super::offer::{self, Entry};
use super::rules::{Judge, Rule, check};

fn shm() -> Entry {
    offer::entry(c"shm".to_owned(), 1024)
}

/// An entry that offers atomics too, in an order up to some lengths.
fn one_sided() -> Entry {
    let mut entry = shm();
    for attributes in [&mut entry.most, &mut entry.usual] {
        for caps in [
            &mut attributes.info.caps,
            &mut attributes.tx.caps,
            &mut attributes.rx.caps,
        ] {
            *caps |= FI_ATOMIC;
        }
        attributes.ep.max_order_raw_size = 4096;
        attributes.ep.max_order_war_size = 64;
        attributes.ep.max_order_waw_size = 1 << 40;
    }
    entry
}

/// Hints of one rule that its judgement accepts.
fn possible(rule: &'static Rule, most: u64) -> BoxedStrategy<u64> {
    match rule.judge {
        Judge::Free => any::<u32>().prop_map(u64::from).boxed(),
        Judge::Bits(..) => any::<u64>().prop_map(move |bits| bits & most).boxed(),
        Judge::Most | Judge::MostWith(_) => (0..=most).boxed(),
        Judge::OneOf(numbers) => prop::sample::select(numbers).boxed(),
        Judge::MrMode => prop_oneof![
            Just(FI_MR_BASIC as u64),
            Just(FI_MR_SCALABLE as u64),
            any::<u32>().prop_map(|bits| u64::from(bits) & !3),
        ]
        .boxed(),
    }
}

/// Hints that are met: each field is 0 or something that is possible.
fn met() -> impl Strategy<Value = Attributes> {
    met_by(&shm())
}

/// Hints that an entry meets.
fn met_by(entry: &Entry) -> impl Strategy<Value = Attributes> + use<> {
    let most = entry.most;
    let fields: Vec<_> = RULES
        .iter()
        .map(|rule| prop_oneof![Just(0), possible(rule, (rule.of)(&most))])
        .collect();
    fields.prop_map(|values| {
        let mut attributes = Attributes::default();
        for (rule, value) in RULES.iter().zip(values) {
            (rule.set)(&mut attributes, value);
        }
        attributes
    })
}

fn hints(attributes: Attributes) -> Hints {
    Hints {
        attributes,
        ..Hints::default()
    }
}

/// Checks that an entry's answer to hints that it meets holds what they request.
fn check_answer(entry: &Entry, attributes: Attributes) -> Result<(), TestCaseError> {
    let hints = hints(attributes);
    prop_assert_eq!(check(Some(&hints), entry, Level::NEWEST), Ok(()));
    let answer = answer(Some(&hints), entry, Level::NEWEST);
    let asked = &hints.attributes;
    for rule in RULES {
        let (wanted, given) = ((rule.of)(asked), (rule.of)(&answer));
        let is_given = match rule.judge {
            Judge::Free => true,
            // Without capabilities for the entry, those of its parts only narrow it.
            Judge::Bits(mask, _) => wanted & mask & !given == 0 || asked.info.caps == 0,
            Judge::Most => wanted <= given,
            // Without such operations the hint is not looked at.
            Judge::MostWith(caps) => wanted <= given || asked.info.caps & caps == 0,
            Judge::OneOf(_) => rule.hint == "domain_attr.resource_mgmt" || wanted == 0 || wanted == given,
            Judge::MrMode => given & !wanted == 0,
        };
        prop_assert!(is_given, "{}: {:#x} of {:#x}", rule.hint, given, wanted);
    }
    Ok(())
}

proptest! {
    #[test]
    fn an_answer_holds_what_was_requested(attributes in met()) {
        check_answer(&shm(), attributes)?;
    }

    #[test]
    fn an_answer_of_one_sided_operations_holds_the_sizes_of_their_order(attributes in met_by(&one_sided())) {
        check_answer(&one_sided(), attributes)?;
    }

    #[test]
    fn an_answer_agrees_with_itself_and_is_a_hint_that_is_met(attributes in met()) {
        let (entry, hints) = (shm(), hints(attributes));
        let found = answer(Some(&hints), &entry, Level::NEWEST);
        prop_assert_eq!((found.tx.caps | found.rx.caps) & !found.info.caps, 0);
        prop_assert!(found.info.caps & (FI_SEND | FI_RECV) != 0);
        let modes = found.domain.mr_mode;
        prop_assert!([0, 1, 2, MR_MODES].contains(&modes), "{:#x}", modes);
        let again = Hints { attributes: found, ..Hints::default() };
        prop_assert_eq!(check(Some(&again), &entry, Level::NEWEST), Ok(()));
        let second = answer(Some(&again), &entry, Level::NEWEST);
        prop_assert_eq!(second, found);
    }

    #[test]
    fn a_hint_beyond_what_is_possible_is_named(attributes in met(), at in 0..RULES.len(), value in any::<u64>()) {
        let entry = shm();
        let (mut attributes, rule) = (attributes, &RULES[at]);
        (rule.set)(&mut attributes, value);
        let most = (rule.of)(&entry.most);
        let is_possible = match rule.judge {
            Judge::Free => true,
            Judge::Bits(mask, _) => value & mask & !most == 0,
            Judge::Most => value <= most,
            Judge::MostWith(caps) => attributes.info.caps & caps == 0 || value <= most,
            Judge::OneOf(numbers) => value == 0 || numbers.contains(&value),
            Judge::MrMode => value & 3 == 0 || value == 1 || value == 2,
        };
        match check(Some(&hints(attributes)), &entry, Level::NEWEST) {
            Ok(()) => prop_assert!(is_possible, "{} takes {:#x}", rule.hint, value),
            Err(clash) => {
                prop_assert!(!is_possible, "{} refuses {:#x}", rule.hint, value);
                prop_assert_eq!(clash.hint, rule.hint);
            }
        }
    }
}

#[test]
fn bits_that_a_release_had_and_gave_up_are_refused() {
    let hints = Hints {
        foreign_caps: 1 << 48,
        ..Hints::default()
    };
    let clash = check(Some(&hints), &shm(), Level::new(1, 17)).unwrap_err();
    assert_eq!(clash.hint, "info.caps");
    assert!(clash.wanted.contains("1.17"), "{clash:?}");
}

#[test]
fn receives_are_exactly_directed_on_request_alone() {
    for bits in [
        FI_TAGGED_DIRECTED_RECV,
        FI_EXACT_DIRECTED_RECV,
        FI_TAGGED_DIRECTED_RECV | FI_EXACT_DIRECTED_RECV,
    ] {
        let mut asked = Hints::default();
        let none = answer(Some(&asked), &shm(), Level::NEWEST);
        assert_eq!(none.info.caps & bits, 0);
        asked.attributes.info.caps = FI_MSG | FI_TAGGED | bits;
        assert_eq!(check(Some(&asked), &shm(), Level::NEWEST), Ok(()));
        let found = answer(Some(&asked), &shm(), Level::NEWEST);
        assert_eq!(
            (found.info.caps & bits, found.rx.caps & bits, found.tx.caps & bits),
            (bits, bits, 0)
        );
        assert_eq!(found.info.caps & FI_DIRECTED_RECV, 0);
    }
}

#[test]
fn no_order_of_completions_is_offered() {
    for order in [FI_ORDER_STRICT, FI_ORDER_DATA] {
        let (mut tx, mut rx) = (Attributes::default(), Attributes::default());
        tx.tx.comp_order = order;
        rx.rx.comp_order = order;
        for (attributes, hint) in [(tx, "tx_attr.comp_order"), (rx, "rx_attr.comp_order")] {
            let clash = check(Some(&hints(attributes)), &shm(), Level::NEWEST).unwrap_err();
            assert_eq!((clash.hint, clash.possible.as_str()), (hint, "none"));
        }
    }
    let answer = answer(None, &shm(), Level::NEWEST);
    assert_eq!((answer.tx.comp_order, answer.rx.comp_order), (0, 0));
}

#[test]
fn the_manual_page_and_the_readme_have_what_is_offered() {
    let page = include_str!("../../fi_doorbell.7");
    let capabilities = &page[page.find(".I Capabilities").unwrap()..page.find(".I Modes").unwrap()];
    let rule = RULES.iter().find(|rule| rule.hint == "info.caps").unwrap();
    let Judge::Bits(_, names) = rule.judge else {
        panic!("{:?}", rule.judge)
    };
    for (bit, name) in names {
        let is_offered = shm().most.info.caps & bit != 0;
        let is_named = capabilities
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .any(|word| word == *name);
        assert_eq!(is_named, is_offered, "{name}");
    }
    for format in [".I Addresses", "FI_SOCKADDR_IN,", "FI_SOCKADDR_IN6"] {
        assert!(page.contains(format), "{format}");
    }
    let readme = include_str!("../../README.md");
    let not_offered = readme.find("Not offered").map(|at| &readme[at..]).unwrap();
    assert!(
        !not_offered
            .lines()
            .take(4)
            .any(|line| line.contains("FI_SOCKADDR"))
    );
}

#[test]
fn each_field_has_a_name_of_its_own() {
    for (at, rule) in RULES.iter().enumerate() {
        assert!(
            RULES[..at].iter().all(|other| other.hint != rule.hint),
            "{}",
            rule.hint
        );
    }
}
