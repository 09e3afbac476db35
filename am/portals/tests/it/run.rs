//! Random programs, a call at a time: after each, everything that it leads to has happened, and the interface has told,
//! counted and moved what the model has.

use doorbell_fabric::ni::{Kind, NiError, NiLimits};
use proptest::prelude::*;

use crate::compare::streams;
use crate::config;
use crate::program::{Step, programs};
use crate::rig::{ModelRig, RealRig, Setting};
use crate::steps::{Cast, Ended};

/// Limits that programs reach.
fn limits() -> NiLimits {
    NiLimits {
        max_entries: 24,
        max_unexpected_headers: 5,
        max_list_size: 6,
        max_triggered_ops: 4,
        max_pt_index: 3,
        ..NiLimits::default()
    }
}

pub(crate) fn setting(kind: u32, ranks: usize, seed: u64) -> Setting {
    let mut setting = Setting::new(Kind::of_number(kind), ranks);
    (setting.limits, setting.seed) = (limits(), seed);
    for (number, who) in setting.processes.iter_mut().enumerate() {
        who.uid = 1 + (number as u32 & 1);
    }
    setting
}

/// How a call ended, as far as the reference says. An entry that was unlinked and waits for its headers is gone, or in
/// use.
fn ending(ended: &Ended) -> &'static str {
    match ended {
        Ok(()) => "ok",
        Err(NiError::InUse | NiError::ArgInvalid(_)) => "no such entry, or in use",
        Err(NiError::NoSpace(_)) => "no space",
        Err(NiError::ListTooLong) => "list too long",
        Err(NiError::Full) => "full",
        Err(_) => "another error",
    }
}

/// Plays a program on both, and compares after each step.
fn play(setting: &Setting, program: &[Step]) -> Result<(), TestCaseError> {
    let (mut model, mut real) = (ModelRig::new(setting, None), RealRig::new(setting));
    let (mut model, mut real) = (Cast::new(&mut model, setting), Cast::new(&mut real, setting));
    for (number, step) in program.iter().enumerate() {
        let wanted = model.play(number as u64 + 1, step);
        let is = real.play(number as u64 + 1, step);
        prop_assert_eq!(
            ending(&is),
            ending(&wanted),
            "step {}: {:?}: {:?}",
            number + 1,
            step,
            is
        );
        for cast in [&mut model, &mut real] {
            let settled = cast.rig.settle();
            prop_assert!(settled.is_ok(), "step {}: {:?}", number + 1, settled);
        }
        compare(number + 1, step, &mut model, &mut real)?;
    }
    for rank in 0..setting.processes.len() {
        let (is, wanted) = (real.bytes(rank), model.bytes(rank));
        let first = (0..is.len()).find(|at| is[*at] != wanted[*at]);
        prop_assert_eq!(first, None, "memory of process {} is different there", rank);
    }
    Ok(())
}

fn compare(
    number: usize,
    step: &Step,
    model: &mut Cast<'_>,
    real: &mut Cast<'_>,
) -> Result<(), TestCaseError> {
    for rank in 0..model.hands.len() {
        for queue in 0..2 {
            let bases = [&model.hands[rank], &real.hands[rank]].map(|hands| hands.memory.whole().address());
            let wanted = streams(&model.events(rank, queue), bases[0], false);
            let is = streams(&real.events(rank, queue), bases[1], false);
            prop_assert_eq!(is, wanted, "step {}: {:?}: process {}", number, step, rank);
        }
        let (is, wanted) = (real.counts(rank), model.counts(rank));
        prop_assert_eq!(
            is,
            wanted,
            "step {}: {:?}: counts of process {}",
            number,
            step,
            rank
        );
        let (is, wanted) = (real.registers(rank), model.registers(rank));
        prop_assert_eq!(
            is,
            wanted,
            "step {}: {:?}: registers of process {}",
            number,
            step,
            rank
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn random_programs_do_what_the_model_does(
        kind in 0..4u32,
        ranks in 2..4usize,
        seed in any::<u64>(),
        program in programs(60),
    ) {
        play(&setting(kind, ranks, seed), &program)?;
    }

    /// Over a network that carries messages only, and short ones.
    #[test]
    fn random_programs_do_so_in_fragments(
        ranks in 2..4usize,
        seed in any::<u64>(),
        program in programs(40),
    ) {
        let mut setting = setting(0, ranks, seed);
        let can = &mut setting.sim.capabilities;
        (can.features.get, can.features.put, can.features.atomics) = (false, false, false);
        (can.limits.message, can.limits.eager, can.limits.fragment) = (2048, 1024, 1024);
        play(&setting, &program)?;
    }
}
