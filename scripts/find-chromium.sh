#!/bin/sh
# Finds Chromium for the tests of the dashboard; installs it where that is possible: with apt as root, else with
# Playwright, whose path to Python is the argument. Never fails: without Chromium these tests are skipped.
python=${1:-python3}
is_there() {
  command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || "$python" - 2>/dev/null <<'PYTHON'
import os, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as started:
    sys.exit(not os.path.exists(started.chromium.executable_path))
PYTHON
}
bounded() { if command -v timeout >/dev/null 2>&1; then timeout "$@"; else shift; "$@"; fi; }
is_there && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  echo "Chromium is not there; installing it with apt, for the tests of the dashboard" >&2
  { bounded 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive bounded 600 apt-get install -y -qq chromium; } >/dev/null 2>&1
  is_there && exit 0
fi
echo "Chromium is not there; installing it with Playwright, for the tests of the dashboard" >&2
bounded 600 "$python" -m playwright install chromium >/dev/null 2>&1
is_there && exit 0
cat >&2 <<'EOT'
Chromium could not be installed: the tests in tests/browser are skipped. Everything else is tested. To run them, install it:
  Debian:      sudo apt-get install chromium
  elsewhere:   python -m playwright install --with-deps chromium
EOT
exit 0
