#!/bin/sh
# Finds Java 17 or newer; installs it with apt where it may; otherwise says how.
here=$(dirname "$0")
. "$here/java-home.sh" && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  echo "Java 17 is not there; installing it with apt" >&2
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null
  . "$here/java-home.sh" && exit 0
fi
cat >&2 <<'EOF'
Spark needs Java 17 or newer, and none was found. Install one, for instance
  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless
  Fedora:          sudo dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@17
or set JAVA_HOME to the one that you have, and run make again.
EOF
exit 1
