import type { FlagTexts } from './flags.ts';
import { flagOf, type Setting, shownDefault } from './setting.ts';
import { ALL_SETTINGS } from './settings.ts';

/**
 * The flags of `portwide run` by their names, as they were given, or their defaults: what kube-proxy shows
 * on `/flagz`. What a file says is not in them; `/configz` has what both come to.
 */
export function flagValues(texts: FlagTexts): Record<string, string> {
  const flags = Object.entries<Setting<unknown>>(ALL_SETTINGS).filter(([, each]) => !each.fileOnly);
  return Object.fromEntries(
    flags.map(([name, each]) => [
      flagOf(name).replace(/^-+/, ''),
      withoutCredentials(texts[name] ?? shownDefault(each)),
    ]),
  );
}

/** A URL may have a name and a password before its host: Kubernetes' word stands for all before the last `@`. */
function withoutCredentials(value: string): string {
  return value.replace(/:\/\/.*@/s, '://CLASSIFIED@');
}
