//! Compiles the contracts in pure Rust: nobody needs to install protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "dra/v1/dra.proto",
        "dra/v1beta1/dra.proto",
        "health/v1alpha1/health.proto",
        "health/v1/health.proto",
        "registration/v1/registration.proto",
        "runner/v1/runner.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
        let descriptors = protox::compile([file], ["proto"])?;
        tonic_prost_build::configure().compile_fds(descriptors)?;
    }
    Ok(())
}
