//! Any messages in any order keep every invariant; with any wrong rule of the sources, some do not.

use doorbell_sim::Random;
use proptest::prelude::*;

use super::checker::{EPOCH, LIMIT, Verdict};
use super::world::World;
use crate::credit::mutants::{Mutants, Rule};
use crate::credit::{Chunk, CreditConfig, Limits, Memory};

/// Few credits, short epochs, low limits: everything happens soon.
fn terms(nodes: u32, per_node: u16, banked: u32, memory: Memory) -> CreditConfig {
    CreditConfig {
        chunks_per_buffer: 2,
        per_node: Some(per_node),
        banked: Some(banked),
        limits: Limits {
            most_per_node: 24,
            epoch: EPOCH,
            lend: LIMIT,
            revoke: LIMIT,
            fan_out: 2,
            steps: 2,
            memory,
        },
        ..CreditConfig::new(nodes, 0, Chunk::Small)
    }
}

const MEMORIES: [Memory; 3] = [Memory::Flags, Memory::Counters, Memory::Mixed];

fn play(terms: CreditConfig, rule: Option<Rule>, choices: impl IntoIterator<Item = u64>) -> Verdict {
    let mut world = World::new(terms, rule);
    for choice in choices {
        world.step(choice)?;
    }
    world.drain()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn invariants_hold_in_every_interleaving(
        nodes in 2_u32..6,
        per_node in 4_u16..12,
        banked in 0_u32..24,
        memory in 0_usize..3,
        choices in proptest::collection::vec(any::<u64>(), 0..600),
    ) {
        let played = play(terms(nodes, per_node, banked, MEMORIES[memory]), None, choices);
        prop_assert_eq!(played, Ok(()));
    }
}

/// Long runs of one seed each; the first fault of any.
fn walks(rule: Option<Rule>) -> Verdict {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let terms = terms(
            2 + random.below(4) as u32,
            4 + random.below(8) as u16,
            random.below(16) as u32,
            MEMORIES[random.below(3) as usize],
        );
        let choices = (0..3000).map(|_| random.next_u64()).collect::<Vec<u64>>();
        play(terms, rule, choices).map_err(|fault| format!("seed {seed}: {fault}"))?;
    }
    Ok(())
}

#[test]
fn the_rules_as_they_are_pass_the_walks_that_the_wrong_ones_fail() {
    assert_eq!(walks(None), Ok(()));
}

#[test]
fn each_wrong_rule_of_the_sources_is_noticed_by_what_it_breaks() {
    for (rule, word) in [
        (Mutants::INVERTED_STALL, "stalled with"),
        (Mutants::LOAN_NOT_RAISED, "accounts for"),
        (Mutants::OWN_INDEX, "an epoch ended"),
        (Mutants::REVOKES_WHAT_IS_IN_USE, "after"),
        (Mutants::TWO_EPOCHS, "after"),
        (Mutants::LIMIT_BEFORE, "in one epoch"),
        (Mutants::BELOW_LEAST, "lends"),
    ] {
        let fault = walks(Some(rule)).expect_err(word);
        assert!(fault.contains(word), "{rule}: {fault}");
    }
}
