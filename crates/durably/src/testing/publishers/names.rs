//! Cases about names of groups: whatever they are, each group is stored apart from all others.

use super::{Exam, Verdict, delete, exam_cases, version, write};

exam_cases![
    groups_with_awkward_names_are_apart,
    long_names_are_apart,
    many_groups_are_apart,
];

/// Names that stores are known to fold, cut, split, decode or take for their own. A store that joins
/// the name of a group to a folder, a prefix or an ending has neighbours of each here.
const AWKWARD: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a.",
    ".a",
    "a/",
    "/a",
    "a//",
    "a/b",
    "a//b",
    "a/./b",
    "a/x/../b",
    "a\\b",
    "a:b",
    "a_b",
    "a-b",
    "a b",
    "a+b",
    "a%2Fb",
    "a%2fb",
    "a%252Fb",
    "%61",
    "%",
    "%%",
    "%zz",
    ".",
    "..",
    "...",
    "./a",
    "../a",
    "../../a",
    "..\\a",
    "/",
    "//",
    "/etc/passwd",
    "~",
    "~/a",
    "$HOME",
    "*",
    "?",
    "a*",
    "a?b=c&d",
    "a#b",
    "-",
    "--help",
    "_",
    " ",
    "  ",
    "\t",
    "\n",
    "a\nb",
    "a\r\nb",
    "a\0b",
    "\u{7f}",
    "\u{feff}",
    "\u{200b}",
    "\u{202e}a",
    "\"",
    "'",
    "`a`",
    "<a>",
    "a|b",
    "a,b",
    "a;b",
    "[a]",
    "{a}",
    "null",
    "undefined",
    "__proto__",
    "constructor",
    "0",
    "-0",
    "00",
    "1e1",
    "CON",
    "con",
    "NUL.json",
    "COM1",
    "lock",
    "probe",
    "index",
    "a.json",
    "A.JSON",
    "a.json.json",
    "a.tmp",
    "a~",
    ".lock",
    ".git",
    ".well-known/acme-challenge/a",
    // The same letters to the eye: composed and not, and upper case that folds to other letters.
    "é",
    "e\u{301}",
    "É",
    "ß",
    "ss",
    "SS",
    "ſ",
    "s",
    "K",
    "k",
    "\u{212a}",
    "İ",
    "i\u{307}",
    "ﬁ",
    "fi",
    "漢字",
    "🦀",
    "\u{10ffff}",
];

async fn groups_with_awkward_names_are_apart(exam: &Exam<'_>) -> Verdict {
    let names = AWKWARD.iter().map(|name| (*name).to_owned()).collect();
    apart(exam, names).await
}

async fn long_names_are_apart(exam: &Exam<'_>) -> Verdict {
    let longest = exam.examinee.longest_group();
    let mut names = Vec::new();
    for length in [100, 128, 200, 251, 255, 256, 400, 512, 1_024, longest] {
        if length > longest {
            continue;
        }
        // They differ in the last byte, in the first, and in kind.
        let most = "x".repeat(length - 1);
        names.push(format!("{most}y"));
        names.push(format!("{most}z"));
        names.push(format!("z{most}"));
        names.push("%".repeat(length));
        names.push("/".repeat(length));
        names.push("é".repeat(length / 2));
    }
    names.sort();
    names.dedup();
    apart(exam, names).await
}

async fn many_groups_are_apart(exam: &Exam<'_>) -> Verdict {
    let names = (0..300).map(|number| exam.group(number)).collect();
    apart(exam, names).await
}

/// Publishes under all names, then deletes every other one, and expects of each what is its own.
async fn apart(exam: &Exam<'_>, names: Vec<String>) -> Verdict {
    let first = |index: usize| version(1 + index as u64);
    let second = |index: usize| version(1_000_000 + index as u64);
    for (index, name) in names.iter().enumerate() {
        exam.store(&write(name, &first(index))).await?;
    }
    for (index, name) in names.iter().enumerate() {
        exam.holds(&write(name, &first(index))).await?;
    }
    for (index, name) in names.iter().enumerate().step_by(2) {
        exam.store(&delete(name, &second(index))).await?;
    }
    for (index, name) in names.iter().enumerate() {
        if index % 2 == 0 {
            exam.misses(name).await?;
        } else {
            exam.holds(&write(name, &first(index))).await?;
        }
    }
    Ok(())
}
