//! The tables of README.md and `docs/benchmarks.md`: their commands and columns.

use super::table::Unit::{Count, Decimals, Mebibytes, Microseconds, Milliseconds, PercentOf, Plain};
use super::table::{Column, Unit};

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The name in the page's mark.
    pub name: &'static str,
    /// The page.
    pub page: &'static str,
    /// The arguments of `wharf-bench` that all commands of the table begin with.
    pub command: &'static str,
    /// The rest of the arguments of each command, without `--json`. The rows of all commands form one table.
    pub variants: &'static [&'static str],
    /// Arguments that shorten each command, for tests of the columns.
    pub quick: &'static str,
    /// The columns.
    pub columns: &'static [Column],
}

impl Section {
    /// Returns the arguments of each command, one text each.
    pub fn commands(&self) -> impl Iterator<Item = String> {
        let command = self.command;
        self.variants.iter().map(move |variant| format!("{command} {variant}").trim_end().to_owned())
    }
}

const fn column(title: &'static str, pointer: &'static str, unit: Unit) -> Column {
    Column { title, pointer, unit }
}

/// The columns of the engine's rows. Those that are given come after that of the floor.
macro_rules! engine_columns {
    ($($more:expr),*) => {
        &[
            column("row", "/name", Plain),
            column("nodes", "/nodes", Count),
            column("policy", "/policy", Plain),
            column("ns per op", "/ns_per_op", Count),
            column("floor ns", "/floor_ns_per_op", Count),
            column("× floor", "/ratio_to_floor", Decimals(1)),
            $($more,)*
            column("scan ns", "/scan_ns_per_op", Count),
            column("p50 ns", "/p50_ns", Count),
            column("p99 ns", "/p99_ns", Count),
            column("visits, mean", "/visited_mean", Decimals(1)),
            column("visits, max", "/visited_max", Count),
            column("bytes per node", "/bytes_per_node", Count),
            column("bytes per allocation", "/bytes_per_allocation", Count),
            column("refused %", "/refused_percent", Decimals(1)),
            column("refusal ns", "/refusal_ns", Count),
            column("missed targets", "/missed_targets", Plain),
        ]
    };
}

const ENGINE: &[Column] = engine_columns!();
/// The same with what the cache lines alone cost.
const ENGINE_TOUCH: &[Column] = engine_columns!(
    column("touch ns", "/touch_ns_per_op", Count),
    column("chain ns", "/touch_chain_ns_per_op", Count)
);

const P50_MICROSECONDS: Column = column("p50 µs", "/latency_ns/p50", Microseconds);
const P99_MICROSECONDS: Column = column("p99 µs", "/latency_ns/p99", Microseconds);
const DECISIONS_PER_SECOND: Column = column("decisions/s", "/placements_per_second", Count);

/// The page of all tables but those of README.md.
const BENCHMARKS: &str = "docs/benchmarks.md";
/// The page of few figures for a first impression.
const README: &str = "README.md";

/// Arguments that shorten `wharf-bench engine`.
const ENGINE_QUICK: &str = "--nodes 1000 --ops 200";

const REPLAY: &[Column] = &[
    column("policy", "/policy", Plain),
    column("shards", "/shards", Count),
    DECISIONS_PER_SECOND,
    P50_MICROSECONDS,
    P99_MICROSECONDS,
    column("placed", "/placed", Count),
    column("not placed", "/unplaced", Count),
    column("GPUs allocated %", "/gpu_allocated_milli", PercentOf("/gpu_capacity_milli")),
];

/// All tables, in the order of the page.
pub const SECTIONS: &[Section] = &[
    Section {
        name: "summary-speed",
        page: README,
        command: "engine --rows steady --nodes 1000,100000",
        variants: &[""],
        quick: "--ops 200",
        columns: &[
            column("nodes", "/nodes", Count),
            column("policy", "/policy", Plain),
            column("place and release, ns", "/ns_per_op", Count),
            column("p99, ns", "/p99_ns", Count),
            column("linear scan, ns", "/scan_ns_per_op", Count),
        ],
    },
    Section {
        name: "summary-packing",
        page: README,
        command: "replay --nodes ../shared/data/openb/fgd_seed42_nodes.csv --pods ../shared/data/openb/fgd_seed42_pods.csv --report-at 120",
        variants: &["--policy least-stranded", "--policy fgd", "--policy best-fit"],
        quick: "",
        columns: &[
            column("policy", "/policy", Plain),
            column("GPUs allocated at 120 % load", "/loads/0/gpu_allocated_percent", Decimals(2)),
            DECISIONS_PER_SECOND,
        ],
    },
    Section {
        name: "engine-steady",
        page: BENCHMARKS,
        command: "engine --rows steady",
        variants: &[""],
        quick: ENGINE_QUICK,
        columns: ENGINE_TOUCH,
    },
    Section {
        name: "engine-unkind",
        page: BENCHMARKS,
        command: "engine --rows adversarial-last,adversarial-anticorrelated,adversarial-fractions,full-99.5,all-equal,all-different",
        variants: &[""],
        quick: ENGINE_QUICK,
        columns: ENGINE_TOUCH,
    },
    Section {
        name: "engine-candidates",
        page: BENCHMARKS,
        command: "engine --rows candidates-1,candidates-10,candidates-1000,candidates-half",
        variants: &[""],
        quick: ENGINE_QUICK,
        columns: ENGINE,
    },
    Section {
        name: "engine-served",
        page: BENCHMARKS,
        command: "engine --rows steady,served-step --nodes 1000,10000",
        variants: &[""],
        quick: "--ops 200",
        columns: ENGINE,
    },
    Section {
        name: "engine-fgd",
        page: BENCHMARKS,
        command: "engine --rows fgd",
        variants: &[""],
        quick: ENGINE_QUICK,
        columns: ENGINE,
    },
    Section {
        name: "views-publish",
        page: BENCHMARKS,
        command: "views --tables publish",
        variants: &[""],
        quick: "--nodes 200 --rounds 5",
        columns: &[
            column("nodes", "/nodes", Count),
            column("changes", "/changes", Count),
            column("ns", "/publish_ns", Count),
            column("ns of a reader", "/build_ns", Count),
            column("chunks copied", "/chunks_copied", Count),
            column("bytes copied", "/bytes_copied", Count),
        ],
    },
    Section {
        name: "views-readers",
        page: BENCHMARKS,
        command: "views --tables readers",
        variants: &[""],
        quick: "--nodes 200 --rounds 5 --millis 5",
        columns: &[
            column("nodes", "/nodes", Count),
            column("readers", "/readers", Count),
            column("ops/s", "/ops_per_second", Count),
            column("views read/s", "/views_per_second", Count),
        ],
    },
    Section {
        name: "views-planners",
        page: BENCHMARKS,
        command: "views --tables planners",
        variants: &[""],
        quick: "--nodes 200 --rounds 5",
        columns: &[
            column("nodes", "/nodes", Count),
            column("replica: ns per change", "/copy_sync_ns", Count),
            column("replica: ns per plan", "/copy_plan_ns", Count),
            column("replica: bytes", "/copy_bytes", Count),
            column("index in the view: ns per change", "/inside_publish_ns", Count),
            column("index in the view: ns per search", "/inside_search_ns", Count),
        ],
    },
    Section {
        name: "groups",
        page: BENCHMARKS,
        command: "groups",
        variants: &[""],
        quick: "--groups 20 --live 5 --nodes 100",
        columns: &[
            column("bundles", "/bundles", Count),
            column("strategy", "/strategy", Plain),
            column("groups/s", "/groups_per_second", Count),
            column("p50 ms", "/p50_ns", Milliseconds),
            column("p99 ms", "/p99_ns", Milliseconds),
            column("cpu µs", "/cpu_ns", Microseconds),
            column("refused", "/refused", Count),
        ],
    },
    Section {
        name: "session",
        page: BENCHMARKS,
        command: "session",
        variants: &[""],
        quick: "--scale 50",
        columns: &[
            column("row", "/name", Plain),
            column("nodes", "/nodes", Count),
            column("running", "/running", Count),
            column("pending", "/pending", Count),
            column("queues", "/queues", Count),
            column("placed", "/placed", Count),
            column("evicted", "/evicted", Count),
            column("ms", "/milliseconds", Decimals(1)),
            column("deciding ms", "/deciding_milliseconds", Decimals(1)),
            column("per second", "/per_second", Count),
            column("memory MiB", "/memory_bytes", Mebibytes),
            column("deviation", "/fairness/deviation_max", Decimals(4)),
            column("wasted", "/fairness/evictions_wasted", Count),
        ],
    },
    Section {
        name: "durability",
        page: BENCHMARKS,
        command: "durability",
        variants: &[""],
        quick: "--requests 1 --nodes 40 --mode memory,os --in-flight 64 --rounds 1",
        columns: &[
            column("mode", "/mode", Plain),
            column("in flight", "/in_flight", Count),
            column("placements/s", "/placements_per_second", Count),
            P50_MICROSECONDS,
            P99_MICROSECONDS,
            column("bytes per placement", "/bytes_per_placement", Decimals(1)),
            column("requests per commit", "/requests_per_commit", Decimals(1)),
            column("floor µs", "/floor_sync_ns", Microseconds),
        ],
    },
    Section {
        name: "rpc",
        page: BENCHMARKS,
        command: "rpc",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("row", "/name", Plain),
            column("mode", "/mode", Plain),
            column("connections", "/connections", Count),
            column("in flight", "/in_flight", Count),
            column("batch", "/batch", Count),
            column("requests/s", "/requests_per_second", Count),
            column("floor/s", "/floor_per_second", Count),
            column("× floor", "/ratio_to_floor", Decimals(2)),
            P50_MICROSECONDS,
            column("floor", "/floor_latency_ns/p50", Microseconds),
            P99_MICROSECONDS,
            column("floor", "/floor_latency_ns/p99", Microseconds),
            column("p99.99 µs", "/latency_ns/p9999", Microseconds),
            column("floor", "/floor_latency_ns/p9999", Microseconds),
            column("service cpu µs", "/server_cpu_us_per_request", Decimals(2)),
            column("load cpu µs", "/client_cpu_us_per_request", Decimals(2)),
            column("judged", "/judged", Decimals(2)),
            column("met", "/is_met", Plain),
        ],
    },
    Section {
        name: "rpc-shards",
        page: BENCHMARKS,
        command: "rpc --load closed --connections 16 --in-flight 256 --load-threads 4 --io-threads 4 --shards 1,2,4,8",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("shards", "/shards", Count),
            column("requests/s", "/requests_per_second", Count),
            column("floor/s", "/floor_per_second", Count),
            column("× floor", "/ratio_to_floor", Decimals(2)),
            P50_MICROSECONDS,
            P99_MICROSECONDS,
            column("service cpu µs", "/server_cpu_us_per_request", Decimals(2)),
        ],
    },
    Section {
        name: "rpc-limits",
        page: BENCHMARKS,
        command: "rpc --rows few,few-callers,many,many-callers,batches,connections,poisson,bursty,many-sync,many-callers-sync",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("row", "/name", Plain),
            column("requests/s", "/requests_per_second", Count),
            column("judged", "/judged", Decimals(2)),
            column("I/O %", "/service_threads/io/busy_percent", Decimals(0)),
            column("shards %", "/service_threads/shards/busy_percent", Decimals(0)),
            column("journal %", "/service_threads/journal/busy_percent", Decimals(0)),
            column("checkpoints %", "/service_threads/checkpoints/busy_percent", Decimals(0)),
            column("planners %", "/service_threads/planners/busy_percent", Decimals(0)),
            column("load %", "/load_threads/busy_percent", Decimals(0)),
            column("fullest", "/fullest", Plain),
            column("busy %", "/fullest_busy_percent", Decimals(0)),
            column("waits for a core %", "/fullest_waiting_percent", Decimals(0)),
            column("all cores %", "/cores_percent", Decimals(0)),
        ],
    },
    Section {
        name: "rpc-secure",
        page: BENCHMARKS,
        command: "rpc --secure",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("row", "/name", Plain),
            column("mode", "/mode", Plain),
            column("requests/s", "/requests_per_second", Count),
            column("without", "/plain_per_second", Count),
            column("× without", "/ratio_to_plain", Decimals(2)),
            column("floor/s", "/floor_per_second", Count),
            column("× floor", "/ratio_to_floor", Decimals(2)),
            P50_MICROSECONDS,
            column("without", "/plain_latency_ns/p50", Microseconds),
            P99_MICROSECONDS,
            column("without", "/plain_latency_ns/p99", Microseconds),
            column("service cpu µs", "/server_cpu_us_per_request", Decimals(2)),
            column("without", "/plain_server_cpu_us_per_request", Decimals(2)),
            column("load cpu µs", "/client_cpu_us_per_request", Decimals(2)),
            column("judged", "/judged", Decimals(2)),
            column("met", "/is_met", Plain),
        ],
    },
    Section {
        name: "scaling",
        page: BENCHMARKS,
        command: "scaling",
        variants: &[""],
        quick: "--nodes 500 --shards 1,2 --seconds 0.02",
        columns: &[
            column("shards", "/shards", Count),
            column("drivers", "/drivers", Count),
            column("pinned", "/pinned", Plain),
            column("requests/s", "/requests_per_second", Count),
            column("× first row", "/speed_up", Decimals(2)),
            column("per shard", "/efficiency", Decimals(2)),
            column("spilled %", "/spilled_percent", Decimals(2)),
        ],
    },
    Section {
        name: "overload",
        page: BENCHMARKS,
        command: "overload",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("load", "/load", Plain),
            column("offered, × maximum", "/multiple", Decimals(1)),
            column("offered/s", "/offered_per_second", Count),
            column("goodput/s", "/goodput_per_second", Count),
            column("× maximum", "/ratio_to_maximum", Decimals(2)),
            column("least", "/ratio_least", Decimals(2)),
            column("most", "/ratio_most", Decimals(2)),
            column("places %", "/placements_percent", Decimals(1)),
            column("late %", "/late_percent", Decimals(2)),
            column("refused %", "/shed_percent", Decimals(2)),
            column("shards busy %", "/shards_busy_percent", Decimals(1)),
            P99_MICROSECONDS,
            column("modest p99 µs", "/modest_latency_ns/p99", Microseconds),
            column("× half", "/modest_ratio", Decimals(2)),
            column("met", "/is_met", Plain),
        ],
    },
    Section {
        name: "idle",
        page: BENCHMARKS,
        command: "idle",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("clients", "/connections", Count),
            column("service cpu, % of a core", "/cpu_percent", Decimals(2)),
            column("wake-ups/s", "/wakeups_per_second", Decimals(1)),
            column("bytes per client", "/bytes_per_connection", Count),
            column("service MiB", "/resident_bytes", Mebibytes),
            column("met", "/is_met", Plain),
        ],
    },
    Section {
        name: "hostile",
        page: BENCHMARKS,
        command: "hostile",
        variants: &[""],
        quick: "--quick",
        columns: &[
            column("crowd", "/crowd", Plain),
            column("acts/s", "/acts_per_second", Count),
            column("offered/s", "/offered_per_second", Count),
            column("goodput/s", "/goodput_per_second", Count),
            column("late %", "/late_percent", Decimals(2)),
            P50_MICROSECONDS,
            P99_MICROSECONDS,
            column("p99.99 µs", "/latency_ns/p9999", Microseconds),
            column("p99, × alone", "/p99_ratio", Decimals(2)),
            column("service cpu, % of a core", "/server_cpu_percent", Decimals(1)),
            column("crowd cpu, % of a core", "/crowd_cpu_percent", Decimals(1)),
            column("peak MiB", "/peak_bytes", Mebibytes),
        ],
    },
    Section {
        name: "recovery",
        page: BENCHMARKS,
        command: "recovery",
        variants: &[
            "--tail-records 0,100000,1000000",
            "--nodes 1000000 --allocations 5000000 --tail-records 1000000 --rounds 1",
        ],
        quick: "--nodes 60 --allocations 1500 --tail-records 0,300 --rounds 1",
        columns: &[
            column("nodes", "/nodes", Count),
            column("allocations", "/allocations", Count),
            column("checkpoint MiB", "/checkpoint_bytes", Mebibytes),
            column("records in the tail", "/tail_records", Count),
            column("appends", "/tail_appends", Count),
            column("tail MiB", "/tail_bytes", Mebibytes),
            column("refused", "/tail_refused", Count),
            column("outcomes", "/outcomes", Count),
            column("start s", "/recovery_seconds", Decimals(2)),
            column("store s", "/store_seconds", Decimals(2)),
            column("engine s", "/engine_seconds", Decimals(2)),
            column("cpu s", "/cpu_seconds", Decimals(2)),
            column("audit s", "/audit_seconds", Decimals(2)),
            column("peak MiB", "/peak_bytes", Mebibytes),
        ],
    },
    Section {
        name: "contention",
        page: BENCHMARKS,
        command: "contention --decision-ms 100 --load 32 --seconds 30 --planners 1,4,8,32",
        variants: &[""],
        quick: "",
        columns: &[
            column("planners", "/planners", Count),
            column("conflict detection", "/conflict_detection", Plain),
            column("mode", "/mode", Plain),
            column("conflict fraction", "/conflict_fraction", Decimals(3)),
            column("wasted", "/wasted_fraction", Decimals(3)),
            column("busyness", "/busyness", Decimals(2)),
            column("jobs/s", "/statements_per_second", Decimals(1)),
        ],
    },
    Section {
        name: "replay",
        page: BENCHMARKS,
        command: "replay --nodes ../shared/data/openb/openb_node_list_all_node.csv --pods ../shared/data/openb/openb_pod_list_default.csv",
        variants: &[
            "--policy best-fit",
            "--policy least-fit",
            "--policy first-fit",
            "--policy next-fit",
            "--policy random",
            "--policy fgd",
            "--policy least-stranded",
        ],
        quick: "",
        columns: REPLAY,
    },
    Section {
        name: "replay-policies",
        page: BENCHMARKS,
        command: "replay --nodes ../shared/data/openb/fgd_seed42_nodes.csv --pods ../shared/data/openb/fgd_seed42_pods.csv --report-at 95,120",
        variants: &[
            "--policy best-fit",
            "--policy least-fit",
            "--policy random",
            "--policy hybrid",
            "--policy fgd",
            "--policy least-stranded",
        ],
        quick: "",
        columns: &[
            column("policy", "/policy", Plain),
            column("GPUs allocated at 95 %", "/loads/0/gpu_allocated_percent", Decimals(2)),
            column("GPUs allocated at 120 %", "/loads/1/gpu_allocated_percent", Decimals(2)),
            DECISIONS_PER_SECOND,
            P50_MICROSECONDS,
            P99_MICROSECONDS,
        ],
    },
];
