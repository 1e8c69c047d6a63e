//! What a disk may have of its files after a power loss.
//!
//! A file has what its last sync covered. Of the changes after it, any part may be there, in any order. A write may be
//! there in part, cut at sectors. The length may be any that the file had since its last sync. A sync covers only its own
//! file. The names of files are in the directory, which has a sync of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::rng::Rng;

use super::content::Content;

/// The bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// A change of a file.
#[derive(Clone, Debug)]
pub enum Change {
    /// These bytes were written at this offset.
    Write(u64, Arc<[u8]>),
    /// The length was set.
    SetLen(u64),
}

/// One thing that a process did to a disk, below the database. Files have numbers, because their names may change.
#[derive(Clone, Debug)]
pub enum Event {
    /// A file was created under this name.
    Create(String),
    /// A file got another name.
    Rename(String, String),
    /// The directory was synced.
    SyncNames,
    /// A file was changed.
    Change(usize, Change),
    /// A file was synced.
    Sync(usize),
}

/// The files of a disk by name.
pub type Image = BTreeMap<String, Content>;

/// A file, and what was changed since its last sync.
#[derive(Clone, Debug, Default)]
struct Unsynced {
    synced: Content,
    changes: Vec<Change>,
}

/// All files of a disk, and what was changed since their last syncs.
#[derive(Clone, Debug, Default)]
pub struct Volume {
    files: Vec<Unsynced>,
    /// The file of each name, as synced, and as it is now.
    synced_names: BTreeMap<String, usize>,
    names: BTreeMap<String, usize>,
}

/// Which changes of a volume survive: all, none, or some of all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Every change, as if all files had been synced.
    All,
    /// No change.
    None,
    /// Of the changes in order, those whose bits are set.
    Chosen(u64),
    /// Of the changes in order, all but this one.
    AllBut(usize),
    /// Only the first changes, and of the last of them only some sectors. The seed chooses them.
    Prefix(usize, u64),
    /// Any changes, in any order, and any sectors of them. The seed chooses them.
    Torn(u64),
}

impl Volume {
    /// Creates a volume with these files. All of it is synced.
    #[must_use]
    pub fn new(image: &Image) -> Self {
        let names: BTreeMap<_, _> = image.keys().cloned().zip(0..).collect();
        let files = image.values().map(|synced| Unsynced { synced: synced.clone(), changes: Vec::new() });
        Self { files: files.collect(), synced_names: names.clone(), names }
    }

    /// Returns the number of the file with this name.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Follows an event.
    ///
    /// # Panics
    /// If the event concerns a file that is not there.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Create(name) => {
                self.names.insert(name.clone(), self.files.len());
                self.files.push(Unsynced::default());
            }
            Event::Rename(from, to) => {
                let file = self.names.remove(from).expect("it has this name");
                self.names.insert(to.clone(), file);
            }
            Event::SyncNames => self.synced_names.clone_from(&self.names),
            Event::Change(file, change) => self.files[*file].changes.push(change.clone()),
            Event::Sync(file) => {
                let Unsynced { synced, changes } = &mut self.files[*file];
                for change in changes.drain(..) {
                    match change {
                        Change::Write(offset, data) => synced.write(offset, &data),
                        Change::SetLen(len) => synced.set_len(len),
                    }
                }
            }
        }
    }

    /// Returns the number of changes that are not synced.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.files.iter().map(|file| file.changes.len()).sum()
    }

    /// Returns what the disk has after a power loss.
    #[must_use]
    pub fn image(&self, fate: Fate) -> Image {
        let mut rng = Rng::new(match fate {
            Fate::Prefix(_, seed) | Fate::Torn(seed) => seed,
            _ => 0,
        });
        let mut first = 0;
        let mut contents = Vec::new();
        for file in &self.files {
            contents.push(file.content(fate, first, &mut rng));
            first += file.changes.len();
        }
        let has_names = match fate {
            Fate::None => false,
            Fate::Torn(_) => rng.below(2) == 1,
            _ => true,
        };
        let names = if has_names { &self.names } else { &self.synced_names };
        names.iter().map(|(name, &file)| (name.clone(), contents[file].clone())).collect()
    }
}

impl Unsynced {
    /// Returns what the disk has of this file, whose first change is number `first` of the volume.
    fn content(&self, fate: Fate, first: usize, rng: &mut Rng) -> Content {
        let mut content = self.synced.clone();
        let mut len = content.len();
        let mut order: Vec<usize> = (0..self.changes.len()).collect();
        if let Fate::Torn(_) = fate {
            for at in (1..order.len()).rev() {
                order.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        for at in order {
            let number = first + at;
            let sectors = match fate {
                Fate::All => Sectors::All,
                Fate::None => continue,
                Fate::Chosen(bits) if number < 64 && bits >> number & 1 == 1 => Sectors::All,
                Fate::Chosen(_) => continue,
                Fate::AllBut(other) if other == number => continue,
                Fate::AllBut(_) => Sectors::All,
                Fate::Prefix(count, _) if number >= count => continue,
                Fate::Prefix(count, _) if number + 1 == count => Sectors::Some,
                Fate::Prefix(..) => Sectors::All,
                Fate::Torn(_) => *[Sectors::None, Sectors::Some, Sectors::All, Sectors::All]
                    .get(rng.below(4) as usize)
                    .expect("one of four"),
            };
            match &self.changes[at] {
                Change::SetLen(to) if sectors != Sectors::None => {
                    content.set_len(*to);
                    len = *to;
                }
                Change::SetLen(_) => {}
                Change::Write(offset, data) => write_sectors(&mut content, *offset, data, sectors, rng),
            }
        }
        // Nothing shows beyond the length that survived.
        content.set_len(len);
        content
    }
}

/// The part of a write that survives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sectors {
    None,
    Some,
    All,
}

fn write_sectors(content: &mut Content, offset: u64, data: &[u8], sectors: Sectors, rng: &mut Rng) {
    let mut at = 0;
    while at < data.len() {
        let begin = offset + at as u64;
        let count = (SECTOR - (begin % SECTOR as u64) as usize).min(data.len() - at);
        let stays = match sectors {
            Sectors::None => false,
            Sectors::Some => rng.below(2) == 1,
            Sectors::All => true,
        };
        if stays {
            content.write(begin, &data[at..at + count]);
        }
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(image: &Image, name: &str) -> Vec<u8> {
        let content = &image[name];
        let mut bytes = vec![0; content.len() as usize];
        content.read(0, &mut bytes);
        bytes
    }

    fn write(file: usize, offset: u64, byte: u8, count: usize) -> Event {
        Event::Change(file, Change::Write(offset, vec![byte; count].into()))
    }

    /// Finds a sync that covers another file, and a synced byte that is lost.
    #[test]
    fn a_sync_covers_its_own_file_and_all_of_it() {
        let mut volume = Volume::default();
        for event in [
            Event::Create("a".to_owned()),
            Event::Create("b".to_owned()),
            Event::SyncNames,
            Event::Change(0, Change::SetLen(1024)),
            Event::Change(1, Change::SetLen(1024)),
            Event::Sync(0),
            Event::Sync(1),
            write(0, 0, 1, 1024),
            write(1, 0, 2, 1024),
            Event::Sync(0),
            write(0, 0, 3, 1024),
        ] {
            volume.apply(&event);
        }
        let none = volume.image(Fate::None);
        assert_eq!((read(&none, "a"), read(&none, "b")), (vec![1; 1024], vec![0; 1024]));
        let all = volume.image(Fate::All);
        assert_eq!((read(&all, "a"), read(&all, "b")), (vec![3; 1024], vec![2; 1024]));
        let second = volume.image(Fate::Chosen(0b10));
        assert_eq!((read(&second, "a"), read(&second, "b")), (vec![1; 1024], vec![2; 1024]));
    }

    /// Finds a model that is too kind: one that never tears a write, never swaps two writes, never loses a new length
    /// or a new name, and one that is too cruel: that mixes bytes within a sector.
    #[test]
    fn torn_images_have_all_that_a_disk_may_do_and_nothing_else() {
        let mut volume = Volume::default();
        volume.apply(&Event::Create("a".to_owned()));
        volume.apply(&Event::SyncNames);
        for event in [
            Event::Change(0, Change::SetLen(1024)),
            Event::Sync(0),
            write(0, 0, 1, 1024),
            write(0, 0, 2, 1024),
            Event::Change(0, Change::SetLen(2048)),
            Event::Create("b".to_owned()),
        ] {
            volume.apply(&event);
        }
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..2000 {
            let image = volume.image(Fate::Torn(seed));
            let bytes = read(&image, "a");
            for sector in bytes.chunks(SECTOR) {
                assert!(sector.iter().all(|byte| byte == &sector[0]), "a sector is whole");
            }
            let mut sectors: Vec<u8> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
            let is_long = sectors.split_off(2) == vec![0; 2];
            seen.insert((sectors, is_long, image.contains_key("b")));
        }
        // Each of two sectors has zeros, the first write or the second one.
        assert_eq!(seen.len(), 3 * 3 * 2 * 2);
    }
}
