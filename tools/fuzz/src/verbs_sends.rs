//! One end of a reliable connection, by the peer: heads with coalesced messages, slots of the ring, and the
//! counters that it writes.

use doorbell_verbs::fuzzing::{Counted, send, slot_of};

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 200;
/// Longest send of the peer's own, and longest message.
const LONGEST: usize = 600;

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut end = Counted::default();
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        let [promised, sent, taken, credits] = end.numbers();
        match script.byte() {
            0..40 => end.send(script.short() % 64),
            40..80 => end.grant(script.short() % 64),
            80..110 => {
                let recalls = script.near(0);
                end.writes([script.near(taken), script.near(credits + sent), recalls]);
            }
            110..140 => {
                let length = script.below(LONGEST);
                end.arrives(script.take(length));
            }
            140..150 => {
                // Any slot, and any send in a slot that is whole; of a lap near the one that is looked for.
                let length = script.below(LONGEST);
                let bytes = script.take(length);
                let lap = script.near(1) as u32;
                let mut slot = slot_of(bytes, script.near(0) as u32, lap);
                for _ in 0..script.below(3) {
                    let at = script.below(slot.len());
                    slot[at] = script.byte();
                }
                end.looks(&slot, 1);
            }
            150..170 => {
                let message = script.below(LONGEST);
                let messages = [script.take(message).to_vec()];
                let granted = script.near(credits) as u32;
                let bytes = send(script.near(taken), granted, (1, script.near(0) as u16), &messages);
                let shown = end.looks(&slot_of(&bytes, 0, 7), 7);
                assert!(shown.is_none_or(|shown| shown == messages));
            }
            _ => {
                let messages: Vec<Vec<u8>> = (0..script.below(5))
                    .map(|_| {
                        let length = script.below(LONGEST);
                        script.take(length).to_vec()
                    })
                    .collect();
                let count = script.near(messages.len() as u64) as u16;
                let (flags, granted) = (script.near(0) as u16, script.near(credits) as u32);
                let bytes = send(script.near(taken), granted, (count, flags), &messages);
                let length = script.near(bytes.len() as u64) as usize;
                let cut = &bytes[..length.min(bytes.len())];
                let shown = end.arrives(cut);
                assert!(promised > 0 || shown.is_none(), "shown without a credit");
                if cut.len() == bytes.len() && flags <= 1 && usize::from(count) == messages.len() {
                    assert!(shown.is_none_or(|shown| shown == messages));
                }
            }
        }
    }
}
