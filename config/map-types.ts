/** Value types that are maps or lists of maps. */
import { describeValue } from '../api/read-field.ts';
import {
  invalid,
  isEmptyList,
  nonNegativeInt32,
  parsePairs,
  readItems,
  requireObject,
  textMatching,
  type ValueType,
} from './value-types.ts';

/** Verbosity of the source files that match a pattern (klog's vmodule). */
interface ModuleLevel {
  readonly filePattern: string;
  readonly verbosity: number;
}

export const moduleLevels: ValueType<readonly ModuleLevel[]> = {
  argument: '<pattern=level>',
  fromFlag: (given) =>
    parsePairs(given).map(([filePattern, level]) => ({
      filePattern: pattern.fromFlag(filePattern),
      verbosity: nonNegativeInt32.fromFlag(level),
    })),
  fromFile: (value, onUnknown) => {
    if (!Array.isArray(value)) return invalid(`must be a list, not ${describeValue(value)}`);
    return readItems([...value.entries()], ([index, item]) => {
      const level = new Map(requireObject(item));
      for (const name of level.keys()) {
        if (name !== 'filePattern' && name !== 'verbosity') onUnknown(`[${index}].${name}`);
      }
      return {
        filePattern: pattern.fromFile(level.get('filePattern') ?? '', onUnknown),
        verbosity: nonNegativeInt32.fromFile(level.get('verbosity') ?? 0, onUnknown),
      };
    });
  },
  toFile: (value) => (value.length === 0 ? null : value),
  isZero: isEmptyList,
};

const pattern = textMatching(
  '<pattern>',
  /^[^=,]+$/,
  'a pattern of file names without "=" and ","',
);

/** Kubernetes' resource.Quantity, as text: `0`, `512`, `64Ki`. */
export const quantity: ValueType<string> = {
  ...textMatching(
    '<size>',
    /^[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?$/,
    'a size such as 512, 1K or 2Mi',
  ),
  fromFile: (value) =>
    quantity.fromFlag(typeof value === 'number' ? String(value) : asString(value)),
  isZero: (value) => value === '' || value === 0,
};

function asString(value: unknown): string {
  return typeof value === 'string' ? value : invalid(`must be a size, not ${describeValue(value)}`);
}
