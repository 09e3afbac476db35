//! From a source to its findings.

use super::*;

fn found(file: &str, source: &str) -> Vec<String> {
    let findings = of_file(file, source).into_iter();
    let short = |finding: Finding| {
        let kind = finding.message.split(':').next().unwrap_or_default().to_owned();
        format!("{} {kind}", finding.line)
    };
    findings.map(short).collect()
}

#[test]
fn comments_documentation_and_messages_are_read() {
    for (source, expected) in [
        ("fn f() {}\n// Nobody waits.\n", &["2 \"nobody\""][..]),
        (
            "/// Returns what the peer\n/// told. More.\nfn f() {}",
            &["2 \"told\""],
        ),
        ("//! Takes\n//! leave.", &["1 \"takes leave\"", "1 short"]),
        ("/* one\n * whoever */", &["2 \"whoever\""]),
        ("#[error(\"the peer has said nothing\")]\nA,", &["1 \"said\""]),
        (
            "const HELP: &str = \"\\\nOne line\\nWho waits here\\n\nof whom it is\";",
            &["2 \"who\"", "3 \"whom\""],
        ),
        ("let x = r#\"it told \"me\" so\"#;", &["1 \"told\""]),
        ("x(); // one asks\ny(); // of him", &["1 \"asks\"", "2 \"him\""]),
    ] {
        let mut found = found("a.rs", source);
        found.sort();
        assert_eq!(found, expected, "{source}");
    }
}

#[test]
fn code_quotations_and_names_are_left_out() {
    for source in [
        "fn told(nobody: &str) -> Asks { says }",
        "// What `told` returns is \"nobody said so\" in [`Heard::says`].",
        "//! See <https://example.org/told> and [this](https://nobody.example/says).",
        "/// Returns the peer:\n///\n/// ```\n/// let told = nobody(); // said\n/// ```\nfn f() {}",
        "let key = \"told\"; let two = \"nobody said\"; let c = 'x';",
        "format!(\"the limit of {told} is {nobody:?}\")",
        "panic!(\"the reply \\\"nobody told\\\" is not one\")",
    ] {
        assert_eq!(found("a.rs", source), [""; 0], "{source}");
    }
}

#[test]
fn documentation_is_a_sentence() {
    for (source, expected) in [
        ("/// Which.\nfn f() {}", &["1 short"][..]),
        ("struct S {\n    /// The peer.\n    a: u8,\n}", &["2 short"]),
        ("/// As [`X`].\nfn f() {}", &["1 short"]),
        ("/** Both. */\nfn f() {}", &["1 short"]),
        ("/// Returns the peer.\nfn f() {}", &[]),
        ("/// The\n/// peer's\n/// rank.\nfn f() {}", &[]),
        ("// Which.\n//// How.\nfn f() {}", &[]),
        ("///\nfn f() {}", &[]),
    ] {
        assert_eq!(found("a.rs", source), expected, "{source}");
    }
}

#[test]
fn comments_end_at_the_last_column() {
    let filled = |head: &str, columns: usize| format!("{head}{}", "é".repeat(columns - head.chars().count()));
    let max = text::COLUMNS;
    assert_eq!(found("a.rs", &filled("// ", max)), [""; 0]);
    assert_eq!(
        found("a.rs", &format!("\n{}", filled("    // ", max + 1))),
        ["2 long"]
    );
    assert_eq!(
        found("a.rs", &format!("/* a\n{}*/", filled("b", max))),
        ["2 long"]
    );
    assert_eq!(
        found("a.rs", &filled("// see https://example.org/", max + 20)),
        [""; 0]
    );
    assert_eq!(found("a.rs", &filled("//! | aa | bb | cc |", max + 20)), [""; 0]);
    assert_eq!(
        found("a.rs", &format!("let a = \"{}\";", "x".repeat(max))),
        [""; 0]
    );
    assert_eq!(found("a.md", &filled("b ", max + 1)), [""; 0]);
}

#[test]
fn documents_are_read_but_their_code() {
    let document = "# Who waits\n\nNobody waits.\n\n    told by nobody\n\n```\nsaid\n```\n\n* one that `asks`\n\n    and hears\n";
    assert_eq!(
        found("a.md", document),
        ["1 \"who\"", "3 \"nobody\"", "13 \"hears\""]
    );
    assert_eq!(found("a.txt", document), [""; 0]);
}

#[test]
fn lines_that_a_diff_adds_are_known() {
    let diff = "diff --git a.rs a.rs\n--- a.rs\n+++ a.rs\n@@ -3 +3,2 @@ fn f() {\n-a\n+b\n+c\n@@ -9,2 +10,0 @@\n-d\n-e\n\
                --- /dev/null\n+++ b/c.rs\n@@ -0,0 +1 @@\n+f\n";
    let expected = [("a.rs", 3), ("a.rs", 4), ("b/c.rs", 1)];
    assert_eq!(
        added(diff),
        expected.map(|(file, line)| (file.to_owned(), line)).into()
    );
}
