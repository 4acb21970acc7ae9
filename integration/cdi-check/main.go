// Asks the reference library of CDI, which container runtimes use, what it makes of our CDI files: loads a directory
// strictly, injects the device of the given id into an empty container, and prints what the container gets as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// strict refuses what the library itself lets pass: a file that declares an older format than it needs, and one with no
// device or several.
type strict struct{}

func (strict) Validate(spec *specs.Spec) error {
	if err := specs.ValidateVersion(spec); err != nil {
		return err
	}
	if len(spec.Devices) != 1 {
		return fmt.Errorf("%d devices", len(spec.Devices))
	}
	return nil
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cdi-check DIRECTORY ID")
		os.Exit(2)
	}
	if err := check(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(directory, id string) error {
	cdi.SetSpecValidator(strict{})
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directory), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	if err := cache.Refresh(); err != nil {
		return err
	}
	// One file that cannot be read is no error of the library's; here it is.
	for path, errors := range cache.GetErrors() {
		return fmt.Errorf("%s: %v", path, errors)
	}
	container := &oci.Spec{}
	if unresolved, err := cache.InjectDevices(container, id); err != nil {
		return fmt.Errorf("%v: %w", unresolved, err)
	}
	return json.NewEncoder(os.Stdout).Encode(container)
}
