//! The bytes of one file, in pages that copies share until they change.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The length of a page. The database writes pages of this length.
pub(super) const PAGE: usize = 4096;

/// The bytes of a file. A page that was never written has zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

/// Returns the page of a byte, and its place in the page.
fn place(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, (offset % PAGE as u64) as usize)
}

impl Content {
    /// Returns the length of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads the bytes from `offset` on. Bytes after the end are zeros.
    pub fn read(&self, mut offset: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let (page, at) = place(offset);
            let count = out.len().min(PAGE - at);
            let (now, rest) = out.split_at_mut(count);
            match self.pages.get(&page) {
                Some(bytes) => now.copy_from_slice(&bytes[at..at + count]),
                None => now.fill(0),
            }
            offset += count as u64;
            out = rest;
        }
    }

    /// Writes bytes. The file grows if they reach beyond its end.
    pub fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        self.len = self.len.max(offset + data.len() as u64);
        while !data.is_empty() {
            let (page, at) = place(offset);
            let (now, rest) = data.split_at(data.len().min(PAGE - at));
            let bytes = Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
            bytes[at..at + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            data = rest;
        }
    }

    /// Returns the offsets of the pages that were written within the file.
    pub(crate) fn written(&self) -> impl Iterator<Item = u64> {
        let offsets = self.pages.keys().map(|page| page * PAGE as u64);
        offsets.take_while(|&offset| offset < self.len)
    }

    /// Cuts the file, or lets it grow by zeros.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            let (page, at) = place(len);
            self.pages.split_off(&(page + 1));
            if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[at..].fill(0);
            }
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::rng::Rng;

    /// Compares with a plain vector of bytes. Finds a write that misses a page, and bytes that come back after a cut.
    #[test]
    fn a_file_is_the_bytes_that_were_written() {
        let mut rng = Rng::new(5);
        let mut content = Content::default();
        let mut oracle: Vec<u8> = Vec::new();
        for round in 0..2000u32 {
            let offset = rng.below(20_000) as usize;
            if rng.below(4) == 0 {
                content.set_len(offset as u64);
                oracle.resize(offset, 0);
            } else {
                let data = vec![round as u8 | 1; rng.below(9000) as usize + 1];
                content.write(offset as u64, &data);
                oracle.resize(oracle.len().max(offset + data.len()), 0);
                oracle[offset..offset + data.len()].copy_from_slice(&data);
            }
            let mut read = vec![7; oracle.len()];
            content.read(0, &mut read);
            assert!(read == oracle && content.len() == oracle.len() as u64, "round {round}");
        }
    }
}
