//! A bit that a disk gives back otherwise than it was written.
//!
//! No power loss does this. A disk that wears out or a faulty controller may, in what was synced long ago. The store must
//! notice, or the bit must be one that nothing is read from.

use std::fmt;

use wharf_core::rng::Rng;

use super::content::PAGE;
use super::unsynced::Image;

/// Half of the bytes that are chosen are such as were written. A page has much space that nothing is in.
const USED_IN: u64 = 2;

/// The number of bytes that are looked at for one that is used.
const LOOKS: u64 = 64;

/// A bit that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The name of the file.
    pub file: String,
    /// The byte.
    pub offset: u64,
    /// The bit of the byte.
    pub bit: u8,
}

impl fmt::Display for Flip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bit {} of byte {} of {}", self.bit, self.offset, self.file)
    }
}

/// Returns the files with one bit changed, in a page that was written. The seed chooses it. `None` if nothing was written.
#[must_use]
pub fn flip(image: &Image, seed: u64) -> Option<(Image, Flip)> {
    let mut rng = Rng::new(seed);
    let pages: Vec<(&String, u64)> =
        image.iter().flat_map(|(name, content)| content.written().map(move |page| (name, page))).collect();
    if pages.is_empty() {
        return None;
    }
    let (name, page) = pages[rng.below(pages.len() as u64) as usize];
    let content = &image[name];
    let length = (content.len() - page).min(PAGE as u64);
    let wants_used = rng.below(USED_IN) == 0;
    let mut offset = page + rng.below(length);
    for _ in 0..LOOKS {
        let mut byte = [0];
        content.read(offset, &mut byte);
        if !wants_used || byte != [0] {
            break;
        }
        offset = page + rng.below(length);
    }
    let bit = rng.below(8) as u8;
    let mut flipped = image.clone();
    let changed = flipped.get_mut(name).expect("it is one of them");
    let mut byte = [0];
    changed.read(offset, &mut byte);
    changed.write(offset, &[byte[0] ^ 1 << bit]);
    Some((flipped, Flip { file: name.clone(), offset, bit }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Content;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.len() as usize];
        content.read(0, &mut bytes);
        bytes
    }

    /// Finds a flip that changes nothing, more than a bit, another place than it says, or never a byte that is used.
    #[test]
    fn one_bit_of_a_written_page_changes() {
        assert_eq!(flip(&Image::new(), 1), None);
        let mut content = Content::default();
        content.set_len(100_000);
        content.write(40_000, &[7; 9]);
        let image = Image::from([("a".to_owned(), Content::default()), ("b".to_owned(), content)]);
        let before = bytes(&image["b"]);
        let mut used = 0;
        for seed in 0..200 {
            let (flipped, Flip { file, offset, bit }) = flip(&image, seed).expect("a page was written");
            assert_eq!((&*file, offset / 4096), ("b", 40_000 / 4096));
            let mut expected = before.clone();
            expected[offset as usize] ^= 1 << bit;
            assert!(bytes(&flipped["b"]) == expected, "seed {seed}");
            used += u64::from((40_000..40_009).contains(&offset));
        }
        assert!((5..=150).contains(&used), "{used} of 200 bytes are used ones");
    }
}
