#!/bin/sh
# Fetches the packages from npm again, and compares their files with those that the dashboard and its tests hold.
set -eu
cd "$(dirname "$0")/.."
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT

fetch() { # PACKAGE VERSION
  file=$(cd "$there" && npm pack --silent "$1@$2")
  rm -rf "$there/package"
  tar -xzf "$there/$file" -C "$there"
}

same() { # FILE OF THE PACKAGE, FILE HERE
  cmp "$there/package/$1" "$2"
  echo "the same: $2"
}

page=src/headrace/observe/web/static/vendor
fetch uplot 1.6.32
same dist/uPlot.iife.min.js $page/uplot.min.js
same dist/uPlot.min.css $page/uplot.min.css
same LICENSE $page/LICENSE.uplot
fetch @dagrejs/dagre 3.1.3
same dist/dagre.min.js $page/dagre.min.js
same LICENSE $page/LICENSE.dagre
fetch axe-core 4.14.1
same axe.min.js tests/browser/vendor/axe.min.js
same LICENSE tests/browser/vendor/LICENSE.axe
