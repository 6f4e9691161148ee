#!/usr/bin/env bash
# Installs the browser that tests/browser drives, on Debian and Ubuntu and as root. It never fails: without the browser
# those tests are skipped, each by name with the reason. AUTOFIT_BROWSER=no leaves the machine as it is.
set -uo pipefail

LIMIT_S=180

if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [[ ${AUTOFIT_BROWSER:-} == no || $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    exit 0
fi
echo "Installing chromium and its driver for the tests of the report" >&2
export DEBIAN_FRONTEND=noninteractive
packages=(chromium chromium-driver fonts-dejavu-core)
if ! { timeout "$LIMIT_S" apt-get update -qq &&
    timeout "$LIMIT_S" apt-get install -qq --no-install-recommends "${packages[@]}"; } >/dev/null 2>&1; then
    echo "chromium could not be installed; the tests in tests/browser will be skipped" >&2
fi
exit 0
