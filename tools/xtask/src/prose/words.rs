//! The words that do not belong in comments, messages and documents, with what to write instead.
//!
//! Processes, sockets and messages do not tell, hear, ask or say: they send, receive, report, look up,
//! request, return. A word that has a correct use in technical English is let through there; each rule names
//! that use.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use super::text::{self, Word};

/// Sentences that stay as they are although a word in them is on the list: they are among the best that there
/// are here.
const KEPT: &[&str] = &[
    // fabric/src/message.rs: the promises of a rail
    "A dead peer or link is an event of [`Rail::event`], told once; never a panic",
    "that both ends tell alike and that is later than those of all connections before it which either end had told \
     to be up",
    "Where the hardware cannot tell whether it did",
    "tells the receiver that somebody calls, and who",
    // btl/src/seq.rs: why 32 bits
    "a frame that a switch held back for so long would be taken for a new one",
    // ring/src/view.rs: why a copy ends in an empty assembly statement
    "nobody writes the bytes while the reference lives; here nobody can promise that",
    "a check of the copy would then say nothing about the value used later",
    // hotel/src/lib.rs: its promises
    "nobody is evicted before their own, or after somebody with a later one",
    "whoever lives there now: an answer that comes after the eviction is told so",
    // drivers/udp/src/lookout.rs: the three states of a socket
    "which is asked now and then: what it names becomes hot or, while others are hotter, *ready*: asked in turn",
];

/// A correct use of a phrase, which is no hit.
#[derive(Debug, Clone, Copy)]
enum Fine {
    /// There is none.
    Never,
    /// One of these words is among the few before it: "RFC 6298 says", "the user asked for".
    After(&'static [&'static str]),
    /// One of these words is among the few behind it: "tells two frames apart", "so long as".
    Before(&'static [&'static str]),
    /// The phrase does not begin a sentence, or begins a question.
    UnlessFirst,
}

/// Phrases that mean the same, and what is written instead.
struct Rule {
    /// Each phrase, in small letters, words separated by one space.
    phrases: &'static [&'static str],
    /// Where it is correct.
    fine: Fine,
    /// What is written instead.
    instead: &'static str,
}

/// How many words before or behind a phrase are looked at.
const REACH: usize = 6;

/// What can say something: texts.
const DOCUMENTS: &[&str] = &[
    "chapter",
    "comment",
    "datasheet",
    "doc",
    "docs",
    "documentation",
    "guide",
    "manual",
    "page",
    "readme",
    "reference",
    "rfc",
    "section",
    "specification",
    "standard",
    "table",
    "text",
];

/// Who can ask and say: people.
const PEOPLE: &[&str] = &[
    "caller", "callers", "people", "person", "reader", "readers", "user", "users", "you",
];

const RULES: &[Rule] = &[
    Rule {
        phrases: &[
            "anybody",
            "everybody",
            "nobody",
            "somebody",
            "whoever",
            "whomever",
            "whosoever",
        ],
        fine: Fine::Never,
        instead: "name the thing: any peer, every rank, no process, a client, the one that",
    },
    Rule {
        phrases: &["whom"],
        fine: Fine::Never,
        instead: "name the thing: the destination, the peer that, to which",
    },
    Rule {
        phrases: &["who", "whose"],
        fine: Fine::UnlessFirst,
        instead: "begin with the thing: the peer that, a rank that, the owner of",
    },
    Rule {
        phrases: &["he", "him", "himself", "his", "she"],
        fine: Fine::Never,
        instead: "it, its, itself; or name the thing",
    },
    Rule {
        phrases: &["tell", "telling", "tells", "told"],
        fine: Fine::Before(&["apart"]),
        instead: "sends, reports, notifies, announces, returns",
    },
    Rule {
        phrases: &["said", "say", "saying", "says"],
        fine: Fine::After(DOCUMENTS),
        instead: "reports, states, prints, requires, contains; that is to say: that is",
    },
    Rule {
        phrases: &["hear", "heard", "hearing", "hears"],
        fine: Fine::Never,
        instead: "receives, is notified of, learns",
    },
    Rule {
        phrases: &["ask", "asked", "asking", "asks"],
        fine: Fine::After(PEOPLE),
        instead: "requests, queries, looks up, calls",
    },
    Rule {
        phrases: &["anew"],
        fine: Fine::Never,
        instead: "again, starts over, restarts",
    },
    Rule {
        phrases: &["knew of", "know of", "knows of"],
        fine: Fine::Never,
        instead: "has an entry for, has discovered, knows",
    },
    Rule {
        phrases: &["so long", "so many", "so much"],
        fine: Fine::Before(&["as", "that"]),
        instead: "name the quantity: `count` entries, for `limit`, this many",
    },
    Rule {
        phrases: &[
            "take leave",
            "taken leave",
            "takes leave",
            "taking leave",
            "took leave",
        ],
        fine: Fine::Never,
        instead: "disconnects, closes, says the protocol's word for it",
    },
    Rule {
        phrases: &["are had", "be had", "is had", "was had", "were had"],
        fine: Fine::Never,
        instead: "is available, is opened, can be allocated",
    },
    Rule {
        phrases: &["reckon", "reckoned", "reckoning", "reckons"],
        fine: Fine::Never,
        instead: "computes, counts, estimates",
    },
];

/// A phrase of the list in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit {
    /// Its first word's line.
    pub(super) line: usize,
    /// The phrase, as in the list.
    pub(super) phrase: &'static str,
    /// What to write instead.
    pub(super) instead: &'static str,
}

/// The phrases that begin with a word, each with its rule.
static BY_FIRST_WORD: LazyLock<HashMap<&'static str, Vec<(&'static Rule, &'static str)>>> =
    LazyLock::new(|| {
        let mut phrases: HashMap<_, Vec<_>> = HashMap::new();
        for (rule, phrase) in RULES
            .iter()
            .flat_map(|rule| rule.phrases.iter().map(move |phrase| (rule, *phrase)))
        {
            phrases
                .entry(phrase.split(' ').next().unwrap_or(phrase))
                .or_default()
                .push((rule, phrase));
        }
        phrases
    });

/// Returns all phrases of the list in `words`, in their order, but those in sentences that stay.
pub(super) fn hits(words: &[Word]) -> Vec<Hit> {
    let mut hits = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let phrases = BY_FIRST_WORD.get(&*word.text).into_iter().flatten();
        hits.extend(phrases.filter_map(|(rule, phrase)| Some((index, rule.hit(words, index, phrase)?))));
    }
    if !hits.is_empty() {
        let kept: Vec<_> = KEPT.iter().flat_map(|sentence| places(words, sentence)).collect();
        hits.retain(|(index, _)| !kept.iter().any(|place| place.contains(index)));
    }
    hits.into_iter().map(|(_, hit)| hit).collect()
}

/// Returns the places of a sentence in `words`.
fn places(words: &[Word], sentence: &str) -> Vec<Range<usize>> {
    let sentence = text::words(1, sentence);
    let is_here = |part: &[Word]| {
        part.iter()
            .map(|word| &word.text)
            .eq(sentence.iter().map(|word| &word.text))
    };
    let parts = words.windows(sentence.len()).enumerate();
    parts
        .filter(|(_, part)| is_here(part))
        .map(|(at, part)| at..at + part.len())
        .collect()
}

impl Rule {
    /// Whether a phrase of this rule is at `index`, in a use that is not correct.
    fn hit(&self, words: &[Word], index: usize, phrase: &'static str) -> Option<Hit> {
        if !begins(&words[index..], phrase) {
            return None;
        }
        let behind = &words[index + phrase.split(' ').count()..];
        let has = |near: &[Word], fine: &[&str]| near.iter().any(|word| fine.contains(&&*word.text));
        let is_fine = match self.fine {
            Fine::Never => false,
            Fine::After(fine) => has(&words[index.saturating_sub(REACH)..index], fine),
            Fine::Before(fine) => has(&behind[..behind.len().min(REACH)], fine),
            Fine::UnlessFirst => !words[index].is_first || words[index].is_in_question,
        };
        (!is_fine).then_some(Hit {
            line: words[index].line,
            phrase,
            instead: self.instead,
        })
    }
}

fn begins(words: &[Word], phrase: &str) -> bool {
    let mut words = words.iter();
    phrase
        .split(' ')
        .all(|part| words.next().is_some_and(|word| word.text == part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&'static str> {
        let words = text::words(1, text);
        hits(&words).into_iter().map(|hit| hit.phrase).collect()
    }

    #[test]
    fn each_word_of_the_list_is_found() {
        for rule in RULES {
            for phrase in rule.phrases {
                let mut text = (*phrase).to_owned();
                text[..1].make_ascii_uppercase();
                assert_eq!(found(&text), [*phrase]);
            }
        }
    }

    #[test]
    fn sentences_of_the_dialect_are_found() {
        for (text, expected) in [
            (
                "Nobody can be told that nobody can be told.",
                &["nobody", "told", "nobody", "told"][..],
            ),
            ("Whose counters are asked for.", &["whose", "asked"]),
            (
                "In the family of whom it is for, so that he has a path to it.",
                &["whom", "he"],
            ),
            ("It waits. Who is opened later has lost nothing", &["who"]),
            ("Begins a get of so many bytes.", &["so many"]),
            ("It tells the peer.", &["tells"]),
            ("It takes\nleave of its peers.", &["takes leave"]),
            ("This is nobody's page.", &["nobody"]),
            ("The queues are made anew.", &["anew"]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn correct_uses_are_none() {
        for text in [
            "Two bits tell the two kinds of frames apart.",
            "RFC 6298 says that the timer is restarted.",
            "The manual page of ip(8) says more.",
            "What the user asked for is printed.",
            "This holds so long as the borrow lives.",
            "So many ranks start at once that the listener's queue is full.",
            "Who owns the page?",
            "A user who has root's rights, whose limits are higher, may do so.",
            "A task at hand; heartbeats; the theory of herds; hereafter",
            "Someone has to read it, and everyone may.",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_sentence_that_stays_is_no_hit_and_others_beside_it_are() {
        let text = "It waits for a view, so that\nnobody writes the bytes while the reference lives; here nobody can promise\nthat.";
        assert_eq!(found(text), [""; 0]);
        assert_eq!(
            found(&format!("Nobody. {text} Somebody does.")),
            ["nobody", "somebody"]
        );
    }

    #[test]
    fn the_line_is_that_of_the_first_word() {
        let words = text::words(7, "One.\nTwo takes\nleave.");
        assert_eq!(hits(&words)[0].line, 8);
    }
}
