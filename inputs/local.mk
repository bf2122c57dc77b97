shelves += inputs
