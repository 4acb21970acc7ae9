use nvml_wrapper_sys::bindings::NvmlLib;

use super::Library;

impl Library {
    /// Those of the symbols that the library does not have. One that is not named here counts as there.
    pub fn lacks(&self, symbols: impl IntoIterator<Item = &'static str>) -> Vec<String> {
        let lib = self.nvml.lib();
        symbols.into_iter().filter(|symbol| is_missing(lib, symbol)).map(str::to_owned).collect()
    }
}

fn is_missing(lib: &NvmlLib, symbol: &str) -> bool {
    macro_rules! look {
        ($($name:ident)*) => {
            match symbol {
                $(stringify!($name) => lib.$name.is_err(),)*
                _ => false,
            }
        };
    }
    look! {
        nvmlInit_v2 nvmlShutdown nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetUUID
        nvmlDeviceGetPciInfo_v3 nvmlSystemGetDriverVersion nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetFieldValues
        nvmlDeviceGetModuleId nvmlEventSetWait_v2
    }
}

#[cfg(test)]
mod tests {
    use heddle_core::preflight::{NEEDED, OPTIONAL};

    #[test]
    fn every_symbol_that_is_checked_is_looked_for() {
        let this = include_str!("symbols.rs");
        let missing: Vec<_> = NEEDED.iter().chain(&OPTIONAL).filter(|symbol| !this.contains(*symbol)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
