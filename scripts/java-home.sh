# Sourced: sets JAVA_HOME to a Java 17 or newer, if there is one.
major_of() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }
fits() { [ -x "$1/bin/java" ] && [ "$(major_of "$1/bin/java")" -ge 17 ] 2>/dev/null; }
if [ -n "$JAVA_HOME" ] && fits "$JAVA_HOME"; then :; else
  unset JAVA_HOME
  found=$(command -v java 2>/dev/null)
  [ -n "$found" ] && found=$(readlink -f "$found") && found=${found%/bin/java}
  for home in "$found" /usr/lib/jvm/*; do
    if [ -n "$home" ] && fits "$home"; then JAVA_HOME=$home; export JAVA_HOME; break; fi
  done
fi
[ -n "$JAVA_HOME" ]
