//! Two contacts of rails over connections with an attacker between them that loses, repeats, reorders and
//! changes frames and adds its own, while their rails call, fail and give up as the script directs. When the
//! attacker has gone, there is one connection, with one number at both ends.

use std::time::Duration;

use doorbell_verbs::fuzzing::ContactPair;

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 300;
/// Longest frame of the attacker's own.
const LONGEST: usize = 300;

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut pair = ContactPair::default();
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        let choice = script.byte();
        let end = usize::from(choice & 1);
        match choice {
            0..40 => pair.request(end, choice >> 1),
            40..80 => pair.pass(Duration::from_micros(1 << (choice % 22))),
            80..100 => {
                let length = script.below(LONGEST);
                pair.stranger(end, script.take(length));
            }
            _ => {
                let at = script.below(2048);
                pair.frame(end, choice >> 1, at);
            }
        }
    }
    pair.finish();
}
