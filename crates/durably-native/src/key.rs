//! Which object is meant: its file and its thread follow from class and name, its id also from the
//! data folder.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use durably::names::{hexadecimal, safe_name};
use sha2::{Digest, Sha256};

/// The longest name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// The identity of an object.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) class: &'static str,
    pub(crate) name: String,
    /// A hash of class and name, so long that no two objects share it.
    hash: [u8; 16],
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.hash.cmp(&other.hash)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl Key {
    pub(crate) fn new(class: &'static str, name: &str) -> Self {
        // A class holds no zero byte, so the two cannot be split in another way.
        let digest = Sha256::new()
            .chain_update(class)
            .chain_update([0])
            .chain_update(name)
            .finalize();
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        Key {
            class,
            name: name.to_owned(),
            hash,
        }
    }

    /// The object's id in the data folder with this id, 32 hexadecimal digits. Objects of one class
    /// and name in two folders are two objects, and may ask the same holder.
    pub(crate) fn id(&self, folder_id: &str) -> String {
        let digest = Sha256::new()
            .chain_update(folder_id)
            .chain_update(self.hash)
            .finalize();
        hexadecimal(&digest[..16])
    }

    /// The thread, of so many, on which the object runs.
    pub(crate) fn thread(&self, threads: usize) -> usize {
        let [.., high, middle, low] = self.hash;
        u32::from_be_bytes([0, high, middle, low]) as usize % threads
    }

    /// Where the object's file is: `objects/<class>/<two digits>/<readable>-<hash>.sqlite`. Whatever
    /// bytes a name has, they are safe here; the file itself says which name it belongs to.
    pub(crate) fn path(&self, data: &Path) -> PathBuf {
        class_folder(data, self.class)
            .join(&hexadecimal(&self.hash)[..2])
            .join(format!("{}.sqlite", self.file_stem()))
    }

    /// The name of a file about this object, without an extension: safe, and its alone among all
    /// objects of a folder.
    pub(crate) fn file_stem(&self) -> String {
        safe_name(&self.name, &self.hash)
    }
}

/// Where the files of a class's objects are.
pub(crate) fn class_folder(data: &Path, class: &str) -> PathBuf {
    data.join("objects").join(class)
}

/// Whether a class can name a folder.
pub(crate) fn is_class_name(class: &str) -> bool {
    (1..=64).contains(&class.len())
        && class
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_becomes_one_safe_path() {
        let data = Path::new("data");
        let mut seen = std::collections::HashSet::new();
        for name in [
            "a",
            "A",
            "../../etc/passwd",
            "a/b",
            "a\0b",
            ".",
            "日本語",
            "",
            &"x".repeat(512),
        ] {
            let path = Key::new("Class", name).path(data);
            assert!(
                seen.insert(path.to_string_lossy().to_lowercase()),
                "{name:?}"
            );
            assert_eq!(path.components().count(), 5, "{name:?}");
            let file = path
                .file_name()
                .expect("a file")
                .to_string_lossy()
                .into_owned();
            assert!(file.len() < 100 && file.is_ascii(), "{file}");
        }
    }

    #[test]
    fn ids_differ_between_folders_and_objects_only() {
        let id = |class, name, folder: &str| Key::new(class, name).id(folder);
        let mine = id("Class", "a", "f1");
        assert_eq!(mine, id("Class", "a", "f1"));
        for other in [
            id("Class", "a", "f2"),
            id("Class", "b", "f1"),
            id("Other", "a", "f1"),
        ] {
            assert_ne!(mine, other);
        }
        assert_eq!(mine.len(), 32);
    }

    #[test]
    fn objects_spread_over_all_threads() {
        let mut used = [0u32; 16];
        for number in 0..1_600 {
            used[Key::new("Class", &number.to_string()).thread(16)] += 1;
        }
        assert!(
            used.iter().all(|count| (50..200).contains(count)),
            "{used:?}"
        );
    }
}
