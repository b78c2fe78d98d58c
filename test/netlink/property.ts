import fc from 'fast-check';

/** Holds a property against many values, the same ones in every run. */
export function checkProperty<T>(property: fc.IProperty<T>): void {
  fc.assert(property, { seed: 20, numRuns: 500 });
}
