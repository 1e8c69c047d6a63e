//! Bugs that are planted in a fuzz target on request.

use wharf_core::planted::PlantedBug;

/// Runs a fuzz target. `bug` is planted in a build with debug assertions where the environment variable `WHARF_PLANT`
/// is set. So one build serves both to look for bugs and to show that a target finds one.
pub fn with_planted_on_request<T>(bug: PlantedBug, run: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    {
        static IS_REQUESTED: std::sync::LazyLock<bool> =
            std::sync::LazyLock::new(|| std::env::var_os("WHARF_PLANT").is_some());
        if *IS_REQUESTED {
            return wharf_core::planted::with_planted(bug, run);
        }
    }
    let _ = bug;
    run()
}
