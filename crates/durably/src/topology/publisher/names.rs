//! Under which name a group is stored: any name of a group becomes one that every file system and
//! every bucket takes.

use sha2::{Digest, Sha256};

use crate::names::{hexadecimal, safe_name};

/// Where a group is stored below a folder or a prefix, with `/` between the two parts: what is readable
/// of its name, up to 40 letters and digits, and the first half of its SHA-256, whose first two digits
/// name the folder. So a name may have any length and any characters, and two that differ in case
/// alone are two files on every file system.
///
/// ```
/// use durably::topology::stored_name;
///
/// assert_eq!(
///     stored_name("tenant/7"),
///     "80/tenant_7-803383aed5f837d5a6be9cf9d2c7ca33.json"
/// );
/// ```
pub fn stored_name(group: &str) -> String {
    Place::of(group).name()
}

/// The place of a group in a store; see [`stored_name`].
#[derive(Clone, Debug)]
pub struct Place {
    hash: [u8; 16],
    file: String,
}

impl Place {
    /// How many folders the groups of a store are spread over.
    pub const FOLDERS: usize = 256;

    /// The place of this group.
    pub fn of(group: &str) -> Self {
        let digest = Sha256::digest(group);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        Place {
            file: format!("{}.json", safe_name(group, &hash)),
            hash,
        }
    }

    /// In which of the [`FOLDERS`](Self::FOLDERS) it is.
    pub fn folder_number(&self) -> usize {
        usize::from(self.hash[0])
    }

    /// The name of its file in that folder.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The name of a folder.
    pub fn folder_name(number: usize) -> String {
        hexadecimal(&[number as u8])
    }

    /// The folder and the file.
    pub fn name(&self) -> String {
        let folder = Place::folder_name(self.folder_number());
        format!("{folder}/{}", self.file)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A stored name is one folder and one file, short, and of characters that are safe anywhere.
        #[test]
        fn any_group_has_a_safe_name(group in "\\PC{0,80}|[./\\\\%\u{0}-\u{1f}]{0,20}|x{0,3000}") {
            let name = stored_name(&group);
            let (folder, file) = name.split_once('/').expect("a folder and a file");
            prop_assert_eq!(folder.len(), 2);
            prop_assert!(file.len() <= 40 + 1 + 32 + 5, "{}", file);
            let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            prop_assert!(folder.bytes().chain(file.bytes()).all(safe), "{}", name);
            prop_assert!(!file.starts_with('.'), "{}", file);
        }
    }

    #[test]
    fn names_that_fold_into_each_other_are_apart() {
        let groups = [
            "a", "A", "ß", "ss", "é", "e\u{301}", "", "_", "/", "a/b", "a_b",
        ];
        let names: std::collections::BTreeSet<String> = groups
            .iter()
            .map(|group| stored_name(group).to_lowercase())
            .collect();
        assert_eq!(names.len(), groups.len());
    }
}
