//! Writes the seed corpora: `cargo run -p wharf-fuzz --example seeds`. Without them, libFuzzer needs minutes to reach
//! inputs that are long enough to do more than set up a shard. Stored findings in the same folders stay as they are.

use std::path::{Path, PathBuf};

use wharf_fuzz::{WITH_JOBS, bytes_of_seed};
use wharf_net::codec::{FLAG_REPLY, Header, encode_body, encode_frame};
use wharf_net::protocol::{BODY_VERSION, Hello, HelloReply, Kind, PlaceRequest, VERSION_MAX};

/// Generated inputs of each target: their seeds, and their length. Some of them find the planted bug of their target.
const GENERATED: [(&str, &[u64], usize); 10] = [
    ("codec", &[1, 4, 9, 14], 300),
    ("config", &[1, 2, 3], 64),
    ("connection", &[1, 2, 10], 1500),
    ("index_ops", &[0, 1], 1500),
    ("journal", &[1, 2, 3, 4, 37], 64),
    ("session_bytes", &[1, 2, 6], 1500),
    ("shard_ops", &[1, 2, 3], 1500),
    ("simulation", &[1, 2, 3], 1500),
    ("statement_ops", &[0, 1, 2], 1500),
    ("trace", &[1, 2, 12], 200),
];

/// The seeds of inputs of `session_bytes` with queues and jobs.
const JOBS_SEEDS: [u64; 2] = [1, 2];

/// Settings as a user has them. The first byte of the input is a blank, which reads the rest as a file.
const SETTINGS: &str = " listen = \"127.0.0.1:0\"\nshards = 2\nio_threads = 1\npartitions = 8\npolicy = \"hybrid\"\n\
    indexed_resources = [\"nic\"]\nattribute_orders = [[\"nic\", \"memory\", \"cpu\", \"gpu_part\", \"gpu\"]]\n\
    tls_client_ca = \"ca.pem\"\n[granularity]\nmemory = \"auto\"\n[granularity.resources]\nnic = \"2.5\"\n\
    [[tenants]]\nname = \"ray\"\nnumber = 7\n[[identities]]\nname = \"head\"\ntenant = \"ray\"\nroles = [\"submit\"]\n";

/// Traces as they are published. The first letter selects the reader: that of nodes, of pods, and of typical pods.
const TRACES: [(&str, &str); 3] = [
    (
        "nodes",
        "Hsn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,32000,262144,2,P100\nn1,96000,786432,0,\n",
    ),
    (
        "pods",
        "Iname,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time\n\
         a,12000,16384,1,460,T4|P100,LS,Running,0,12537496\nb,6000,12288,0,0,,BE,Failed,1,\n",
    ),
    ("typical", "Jcpu_milli,num_gpu,gpu_milli,gpu_spec,count\n4000,1,500,T4,7\n8000,2,1000,,1\n"),
];

fn frame<T: serde::Serialize>(kind: Kind, flags: u8, sequence: u64, body: &T) -> Vec<u8> {
    let header = Header {
        kind: kind.number(),
        flags,
        version: BODY_VERSION,
        sequence,
        lowest_unacknowledged: sequence,
    };
    let mut out = Vec::new();
    encode_frame(header, &[], &mut out, |out| encode_body(body, out));
    out
}

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = |target: &str, name: &str, input: &[u8]| -> std::io::Result<()> {
        let folder: PathBuf = folder.join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), input)
    };
    for (target, seeds, length) in GENERATED {
        for seed in seeds {
            write(target, &format!("seed-{seed}"), &bytes_of_seed(*seed, length))?;
        }
    }
    for seed in JOBS_SEEDS {
        let input = [WITH_JOBS, &bytes_of_seed(seed, 1500)].concat();
        write("session_bytes", &format!("jobs-{seed}"), &input)?;
    }
    write("config", "settings", SETTINGS.as_bytes())?;
    for (name, trace) in TRACES {
        write("trace", name, trace.as_bytes())?;
    }
    let hello = Hello { version_min: 1, version_max: VERSION_MAX, ..Hello::default() };
    let frames = [
        frame(Kind::Hello, 0, 0, &hello),
        frame(Kind::Hello, FLAG_REPLY, 0, &HelloReply::default()),
        frame(Kind::Place, 0, 1, &PlaceRequest::default()),
    ];
    // The first byte reads the rest as a stream of frames.
    write("codec", "frames", &[vec![0], frames.concat()].concat())
}
