//! Accelerators read through NVIDIA's management library (NVML), which is loaded at run time.
//!
//! A device is unhealthy after an uncorrectable ECC error since the driver was loaded, or after one of the
//! Xid errors below. It is also unhealthy if a row remapping failed or waits for a reset, or if the device is
//! lost or needs a reset. The meanings of Xids are from NVIDIA, "XID Errors",
//! <https://docs.nvidia.com/deploy/xid-errors/>.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enum_wrappers::nv_link::IntDeviceType;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::inventory::{Accelerators, Gpu, Inventory};

/// Xids after which a device takes no new work. Xids that programs cause (13, 31, 43, 45, 68, 109) are not
/// included. Nor is 63, which only records that a page or row will be replaced; the remapping state is read
/// separately.
const FATAL_XIDS: [(u64, &str); 11] = [
    (46, "the GPU stopped processing"),
    (48, "double-bit ECC error"),
    (62, "internal micro-controller halt"),
    (64, "a page retirement or row remapping could not be recorded"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (94, "contained ECC error"),
    (95, "uncontained ECC error"),
    (119, "GSP remote call timeout"),
    (120, "GSP error"),
    (140, "unrecovered ECC error"),
];
/// Field ids of "row remapping is pending" and "row remapping failed" (`NVML_FI_DEV_REMAPPED_*`).
const REMAPPED_PENDING: u32 = 144;
const REMAPPED_FAILURE: u32 = 145;
/// Upper bound on the NVLinks of one device.
const LINKS_MAX: u32 = 18;

/// Describes the fault of a fatal Xid; `None` for other Xids.
fn fatal_xid(xid: u64) -> Option<String> {
    let (number, meaning) = FATAL_XIDS.iter().find(|(number, _)| *number == xid)?;
    Some(format!("Xid {number}: {meaning}"))
}

/// The loaded library. It lives for the rest of the process, because its event sets borrow it.
struct Loaded {
    nvml: &'static Nvml,
    events: Option<EventSet<'static>>,
    /// UUIDs of devices whose events are registered with `events`.
    registered: BTreeSet<String>,
    /// UUIDs of devices that do not support these events.
    unheard: BTreeSet<String>,
    /// The first fatal Xid since the agent started, by UUID.
    xids: BTreeMap<String, String>,
    /// Devices by index. A lost device no longer reports its UUID and is recognised by its index.
    seen: BTreeMap<u32, Gpu>,
}

/// The accelerators of this machine.
#[derive(Default)]
pub struct NvmlInventory(Option<Loaded>);

impl Inventory for NvmlInventory {
    fn read(&mut self) -> anyhow::Result<Accelerators> {
        if self.0.is_none() {
            let nvml = match Nvml::init() {
                Ok(nvml) => nvml,
                // Without a library or driver there is nothing to report.
                Err(
                    NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded,
                ) => {
                    return Ok(Accelerators {
                        source: "no NVIDIA driver found".to_owned(),
                        gpus: Vec::new(),
                    });
                }
                Err(error) => anyhow::bail!("NVML cannot be initialised: {error}"),
            };
            // Leaked at most once per process.
            let nvml: &'static Nvml = Box::leak(Box::new(nvml));
            let events = nvml.create_event_set().ok();
            let registered = BTreeSet::new();
            let unheard = BTreeSet::new();
            let xids = BTreeMap::new();
            let seen = BTreeMap::new();
            self.0 = Some(Loaded { nvml, events, registered, unheard, xids, seen });
        }
        let loaded = self.0.as_mut().expect("loaded above");
        let version = loaded.nvml.sys_driver_version().unwrap_or_else(|_| "?".to_owned());
        loaded.take_events();
        Ok(Accelerators { source: format!("NVIDIA driver {version}"), gpus: loaded.gpus()? })
    }
}

impl Loaded {
    /// Processes all events since the last call.
    fn take_events(&mut self) {
        let Some(events) = &self.events else { return };
        while let Ok(event) = events.wait(0) {
            let Some(XidError::Value(xid)) = event.event_data else { continue };
            if let (Some(fault), Ok(uuid)) = (fatal_xid(xid), event.device.uuid()) {
                self.xids.entry(uuid).or_insert(fault);
            }
        }
    }

    fn register(&mut self, uuid: &str, device: &Device<'static>) {
        if self.registered.contains(uuid) || self.unheard.contains(uuid) {
            return;
        }
        let Some(events) = self.events.take() else { return };
        match device.register_events(EventTypes::CRITICAL_XID_ERROR, events) {
            Ok(events) => {
                self.events = Some(events);
                self.registered.insert(uuid.to_owned());
            }
            // A failed registration consumes the event set and all its registrations. The other devices are
            // registered again when they are read next.
            Err(_) => {
                self.unheard.insert(uuid.to_owned());
                self.registered.clear();
                self.events = self.nvml.create_event_set().ok();
            }
        }
    }

    fn gpus(&mut self) -> anyhow::Result<Vec<Gpu>> {
        let mut gpus = Vec::new();
        let mut links = Vec::new();
        for index in 0..self.nvml.device_count()? {
            let read = self.nvml.device_by_index(index).and_then(|device| Ok((device.uuid()?, device)));
            let (uuid, device) = match (read, self.seen.get(&index)) {
                (Ok(read), _) => read,
                // The index was readable before, so this is the same device, and it is lost.
                (Err(error), Some(seen)) => {
                    let fault = Some(format!("the device cannot be reached: {error}"));
                    gpus.push(Gpu { fault, ..seen.clone() });
                    continue;
                }
                (Err(_), None) => continue,
            };
            self.register(&uuid, &device);
            let mig = mig_profiles(&device);
            let gpu = Gpu {
                model: device.name().unwrap_or_default(),
                memory_mib: device.memory_info().map_or(0, |memory| memory.total >> 20),
                numa: numa_node(&device),
                links: Vec::new(),
                fault: self.xids.get(&uuid).cloned().or_else(|| fault(&device)),
                mig,
                uuid,
            };
            links.push((gpus.len(), bus_id(&device), peers(&device)));
            self.seen.insert(index, gpu.clone());
            gpus.push(gpu);
        }
        join_links(&mut gpus, &links);
        Ok(gpus)
    }
}

/// The remote ends of one device's links.
#[derive(Default)]
struct Peers {
    /// Bus ids of directly linked devices.
    devices: BTreeSet<String>,
    /// True if a link ends at a switch. All devices with such links are connected to each other.
    switch: bool,
}

/// An index into the list of GPUs, the device's bus id, and the ends of its links.
type Linked = (usize, String, Peers);

fn join_links(gpus: &mut [Gpu], links: &[Linked]) {
    for (at, bus, peers) in links {
        let linked = links.iter().filter(|(other, other_bus, others)| {
            other != at
                && (peers.devices.contains(other_bus)
                    || others.devices.contains(bus)
                    || (peers.switch && others.switch))
        });
        let uuids: Vec<String> = linked.map(|(other, ..)| gpus[*other].uuid.clone()).collect();
        gpus[*at].links = uuids;
    }
}

fn bus_id(device: &Device<'_>) -> String {
    device.pci_info().map(|pci| pci.bus_id.to_ascii_lowercase()).unwrap_or_default()
}

fn peers(device: &Device<'_>) -> Peers {
    let mut peers = Peers::default();
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        if !matches!(link.is_active(), Ok(true)) {
            continue;
        }
        match link.remote_device_type(number) {
            Ok(IntDeviceType::Switch) => peers.switch = true,
            _ => peers.devices.extend(link.remote_pci_info().map(|pci| pci.bus_id.to_ascii_lowercase()).ok()),
        }
    }
    peers
}

fn numa_node(device: &Device<'_>) -> Option<u16> {
    // Read from the kernel by bus address: NVML reports the node of the device's memory, where it has one.
    let pci = device.pci_info().ok()?;
    let bus = format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{bus}/numa_node")).ok()?;
    text.trim().parse().ok()
}

/// Returns the profiles of a device in MIG mode; `None` for other devices.
fn mig_profiles(device: &Device<'_>) -> Option<Vec<String>> {
    if device.mig_mode().ok()?.current == 0 {
        return None;
    }
    let count = device.mig_device_count().unwrap_or(0);
    let names = (0..count).filter_map(|i| device.mig_device_by_index(i).ok()?.name().ok());
    Some(names.filter_map(|name| mig_profile(&name)).collect())
}

/// Extracts the profile from the name of a MIG device, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
fn mig_profile(name: &str) -> Option<String> {
    name.rsplit_once("MIG ").map(|(_, profile)| profile.trim().to_owned())
}

/// Returns the current fault of a device, if any.
fn fault(device: &Device<'_>) -> Option<String> {
    match device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile) {
        Ok(0) => {}
        Ok(count) => return Some(format!("{count} uncorrectable ECC errors since the driver was loaded")),
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => {
            return Some(format!("the device is lost: {error}"));
        }
        // The device has no ECC or does not permit the query, so it counts as healthy here.
        Err(_) => {}
    }
    let set = |field: u32| {
        let read = device.field_values_for(&[FieldId(field)]).ok()?.pop()?.ok()?;
        Some(!matches!(read.value.ok()?, SampleValue::U32(0) | SampleValue::U64(0) | SampleValue::I64(0)))
    };
    match (set(REMAPPED_FAILURE), set(REMAPPED_PENDING)) {
        (Some(true), _) => Some("a row remapping failed".to_owned()),
        (_, Some(true)) => Some("a row remapping waits for a reset of the GPU".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fatal_xids_are_told_by_their_meaning_and_those_of_programs_are_not_fatal() {
        assert_eq!(fatal_xid(79).as_deref(), Some("Xid 79: the GPU has fallen off the bus"));
        for of_programs in [13, 31, 43, 45, 63, 68] {
            assert_eq!(fatal_xid(of_programs), None);
        }
    }

    #[test]
    fn profiles_are_read_from_names() {
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb").as_deref(), Some("1g.5gb"));
        assert_eq!(mig_profile("NVIDIA A100-SXM4-40GB"), None);
    }

    #[test]
    fn links_join_devices_directly_and_by_a_switch() {
        let gpu = |uuid: &str| Gpu { uuid: uuid.to_owned(), ..Gpu::default() };
        let peers = |devices: &[&str], switch| Peers {
            devices: devices.iter().map(|&d| d.to_owned()).collect(),
            switch,
        };
        let mut gpus = vec![gpu("a"), gpu("b"), gpu("c"), gpu("d")];
        let links = vec![
            (0, "0".to_owned(), peers(&["1"], false)),
            (1, "1".to_owned(), peers(&[], true)),
            (2, "2".to_owned(), peers(&[], true)),
            (3, "3".to_owned(), peers(&["9"], false)),
        ];
        join_links(&mut gpus, &links);
        let of = |at: usize| gpus[at].links.join(" ");
        assert_eq!([of(0), of(1), of(2), of(3)], ["b", "a c", "b", ""]);
    }
}
